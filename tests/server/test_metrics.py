"""/metrics: by adapter, under vLLM's names too, and as few series as before whatever callers name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import aril.commands._faces  # noqa: F401 -- with the whole house, every metric has its name
import httpx
import pytest
from aril.core.callers import LOCAL
from aril.engine.adapter_metrics import AdapterMetrics
from aril.engine.metering import Outcome, Work
from aril.lora.adapter import AdapterRef
from aril.lora.catalog import Resolution
from builders.serving import Served
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

DASHBOARD = Path(__file__).parent.parent.parent / "docs" / "grafana.json"
VLLM = {  # name -> the labels that vLLM gives it
    "vllm:num_requests_running": {"model_name", "engine"},
    "vllm:num_requests_waiting": {"model_name", "engine"},
    "vllm:kv_cache_usage_perc": {"model_name", "engine"},
    "vllm:gpu_cache_usage_perc": {"model_name", "engine"},
    "vllm:lora_requests_info": {"max_lora", "running_lora_adapters", "waiting_lora_adapters"},
    "vllm:prompt_tokens_total": {"model_name", "engine"},
    "vllm:generation_tokens_total": {"model_name", "engine"},
    "vllm:num_preemptions_total": {"model_name", "engine"},
    "vllm:prefix_cache_queries_total": {"model_name", "engine"},
    "vllm:prefix_cache_hits_total": {"model_name", "engine"},
    "vllm:request_success_total": {"model_name", "engine", "finished_reason"},
    "vllm:time_to_first_token_seconds_bucket": {"model_name", "engine", "le"},
    "vllm:time_per_output_token_seconds_sum": {"model_name", "engine"},
    "vllm:inter_token_latency_seconds_count": {"model_name", "engine"},
    "vllm:e2e_request_latency_seconds_bucket": {"model_name", "engine", "le"},
    "vllm:request_queue_time_seconds_sum": {"model_name", "engine"},
    "vllm:request_prefill_time_seconds_sum": {"model_name", "engine"},
    "vllm:request_decode_time_seconds_sum": {"model_name", "engine"},
    "vllm:request_prompt_tokens_bucket": {"model_name", "engine", "le"},
    "vllm:request_generation_tokens_bucket": {"model_name", "engine", "le"},
}


def families(http: httpx.Client) -> dict[str, Metric]:
    """All that /metrics shows, by name, as a Prometheus client reads it."""
    return {family.name: family for family in text_string_to_metric_families(http.get("/metrics").text)}


def samples(http: httpx.Client, name: str) -> dict[tuple[str, ...], float]:
    """The values of one series name, by the values of its labels."""
    every = (sample for family in families(http).values() for sample in family.samples)
    return {tuple(sample.labels.values()): sample.value for sample in every if sample.name == name}


def ask(http: httpx.Client, model: str, **fields: object) -> httpx.Response:
    """One short completion."""
    return http.post(
        "/v1/completions", json={"model": model, "prompt": "a", "max_tokens": 4, "ignore_eos": True, **fields}
    )


@pytest.mark.parametrize("name", VLLM)
def test_what_vllm_shows_is_shown_with_its_labels(http: httpx.Client, name: str) -> None:
    assert ask(http, "red").status_code == 200
    every = (sample for family in families(http).values() for sample in family.samples)
    assert {frozenset(sample.labels) for sample in every if sample.name == name} == {frozenset(VLLM[name])}


def test_an_answer_is_counted_under_both_names(http: httpx.Client) -> None:
    names = ("aril_generation_tokens_total", "vllm:generation_tokens_total")
    before = [sum(samples(http, name).values()) for name in names]
    ask(http, "red")
    after = [sum(samples(http, name).values()) for name in names]
    assert [new - old for old, new in zip(before, after, strict=True)] == [4, 4]


def test_names_that_do_not_exist_make_no_series(http: httpx.Client) -> None:
    assert ask(http, "nobody").status_code == 404
    before = len(http.get("/metrics").text.splitlines())
    for number in range(200):
        assert ask(http, f"nobody-{number}").status_code == 404
    assert len(http.get("/metrics").text.splitlines()) == before


def test_what_a_request_came_to_is_counted_by_adapter(http: httpx.Client) -> None:
    ref = AdapterRef("counted", 3, "f" * 64)
    work = Work(caller=LOCAL, resolution=Resolution(ref=ref, speaker="counted@3"), prompts=[], params=[])
    fine = Outcome(prompt_tokens=9, cached_tokens=4, completion_tokens=3, first_token_seconds=0.1, gaps=[0.1, 0.1])
    metrics = AdapterMetrics()
    for outcome in (fine, Outcome(error="client_gone")):
        metrics.ended(work, outcome)
    found = {
        name: value
        for name in ("requests", "prompt_tokens", "cached_tokens", "generation_tokens")
        for labels, value in samples(http, f"aril_adapter_{name}_total").items()
        if labels == ("counted",)
    }
    assert found == {"requests": 2, "prompt_tokens": 9, "cached_tokens": 4, "generation_tokens": 3}
    assert samples(http, "aril_adapter_errors_total")[("counted", "client_gone")] == 1
    assert samples(http, "aril_adapter_inter_token_seconds_count")[("counted",)] == 2
    assert samples(http, "aril_adapter_time_to_first_token_seconds_count")[("counted",)] == 1


def test_loads_are_counted_by_adapter(served: Served, http: httpx.Client) -> None:
    ask(http, "green")
    assert samples(http, "aril_adapter_loads_total")[("green",)] >= 1
    assert samples(http, "aril_adapter_read_seconds_count")[("green",)] >= 1


def expressions() -> Iterator[str]:
    """Every query of the dashboard."""
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query")


def test_the_dashboard_asks_only_for_what_is_exported(http: httpx.Client) -> None:
    kinds = {name: family.type for name, family in families(http).items()}
    exported = {f"{name}_total" if kind == "counter" else name for name, kind in kinds.items()}
    exported |= {
        f"{name}_{end}" for name, kind in kinds.items() if kind == "histogram" for end in ("bucket", "sum", "count")
    }
    asked = {name for expression in expressions() for name in re.findall(r"\b(?:aril_|vllm:)\w+", expression)}
    assert len(asked) > 25
    assert asked <= exported
