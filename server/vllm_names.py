"""Our metrics once more under the names and labels that vLLM gives them, for dashboards and gateways that know those.

Nothing is counted here: each is read off what the engine counts, or off its status, when /metrics is asked. Which names
there are follows vllm/v1/metrics/loggers.py of vLLM, and the model server protocol of the Kubernetes Gateway API
inference extension, which wants `vllm:lora_requests_info` with the time as its value.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase

from ..engine import clocks, holdings, scheduler
from ..engine.client import EngineStatus

Labels = Mapping[str, str]
COUNTERS: Mapping[str, Counter] = {
    "prompt_tokens": holdings.PROMPT_TOKENS,
    "generation_tokens": scheduler.OUTPUT_TOKENS,
    "num_preemptions": holdings.PREEMPTIONS,
    "prefix_cache_queries": holdings.PROMPT_TOKENS,
    "prefix_cache_hits": holdings.CACHED_TOKENS,
    "gpu_prefix_cache_queries": holdings.PROMPT_TOKENS,  # as vLLM called them before 0.9
    "gpu_prefix_cache_hits": holdings.CACHED_TOKENS,
    "request_success": holdings.ENDED,
}
HISTOGRAMS: Mapping[str, Histogram] = {
    "time_to_first_token_seconds": clocks.FIRST_TOKEN_SECONDS,
    "inter_token_latency_seconds": clocks.GAP_SECONDS,
    "time_per_output_token_seconds": clocks.GAP_SECONDS,  # as vLLM called it before 0.11
    "request_time_per_output_token_seconds": clocks.TOKEN_SECONDS,
    "e2e_request_latency_seconds": clocks.REQUEST_SECONDS,
    "request_queue_time_seconds": clocks.QUEUE_SECONDS,
    "request_prefill_time_seconds": clocks.PREFILL_SECONDS,
    "request_decode_time_seconds": clocks.DECODE_SECONDS,
    "request_prompt_tokens": clocks.PROMPT_LENGTH,
    "request_generation_tokens": clocks.OUTPUT_LENGTH,
}
RENAMED = {"reason": "finished_reason"}


class VllmNames:
    """What one engine shows; a collector of prometheus_client's."""

    def __init__(self, model: str, status: EngineStatus) -> None:
        self._labels = {"model_name": model, "engine": "0"}
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """All of it, as things stand."""
        yield from self._gauges()
        for name, metric in {**COUNTERS, **HISTOGRAMS}.items():
            yield _renamed(metric, f"vllm:{name}", self._labels)
        yield self._adapters()

    def _gauges(self) -> Iterator[Metric]:
        status = self._status
        used = 1.0 - status.free_blocks / max(status.total_blocks, 1)
        for name, about, value in (
            ("num_requests_running", "Requests that take part in steps", status.running),
            ("num_requests_waiting", "Requests that wait", status.waiting),
            ("kv_cache_usage_perc", "Share of the KV cache that requests hold; 1 is all of it", used),
            ("gpu_cache_usage_perc", "vllm:kv_cache_usage_perc, as vLLM called it before 0.9", used),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", about, labels=list(self._labels))
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge

    def _adapters(self) -> Metric:
        """One series for the adapters in use at this moment, which the next one replaces."""
        labels = {
            "max_lora": str(self._status.adapter_slots),
            "waiting_lora_adapters": ",".join(self._status.waiting_adapters),
            "running_lora_adapters": ",".join(self._status.running_adapters),
        }
        gauge = GaugeMetricFamily(
            "vllm:lora_requests_info", "When this was looked at, and the adapters of requests then", labels=list(labels)
        )
        gauge.add_metric(list(labels.values()), time.time())
        return gauge


def _renamed(metric: MetricWrapperBase, name: str, labels: Labels) -> Metric:
    [ours] = metric.collect()
    theirs = Metric(name, ours.documentation, ours.type)
    for sample in ours.samples:
        kept = {RENAMED.get(key, key): value for key, value in sample.labels.items()}
        theirs.add_sample(name + sample.name.removeprefix(ours.name), {**labels, **kept}, sample.value)
    return theirs
