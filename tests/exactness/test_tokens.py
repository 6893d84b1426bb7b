"""Greedy tokens are those of transformers and PEFT, whatever shares the batch and however the work is cut."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from aril.core import metrics
from aril.engine.llm import LLM, RequestOutput

from .conftest import ADAPTERS, GREEDY, PROMPTS, SHORT, MakeLLM, Oracle, crossed, prompt


def answers(llm: LLM, params: Any = GREEDY) -> list[RequestOutput]:
    """Every prompt for base and adapters, in one go."""
    prompts, who = crossed(PROMPTS)
    return llm.generate(prompts, params, adapter=who, use_tqdm=False)


def test_a_mixed_batch_answers_as_transformers_and_peft_do(oracle: Oracle, make_llm: MakeLLM) -> None:
    for output in answers(make_llm()):
        oracle.follows(output)


def test_the_adapters_of_these_tests_change_every_answer(make_llm: MakeLLM) -> None:
    outputs = answers(make_llm(), SHORT)
    by_prompt = [{tuple(o.outputs[0].token_ids) for o in outputs[at : at + 5]} for at in range(0, len(outputs), 5)]
    assert [len(different) for different in by_prompt] == [5] * len(PROMPTS)


CUTS: dict[str, dict[str, Any]] = {
    "chunks of 32": {"max_num_batched_tokens": 32, "max_num_seqs": 16},
    "one row at a time": {"max_num_seqs": 1},
    "slots for one adapter": {"max_adapters": 1},
    "memory for the largest adapter alone": {"adapter_memory": 100 * 1024},
    "small blocks": {"block_size": 1},
    "no prefix cache": {"enable_prefix_caching": False},
}


@pytest.mark.parametrize("flags", CUTS.values(), ids=CUTS.keys())
def test_the_cut_of_the_work_does_not_change_the_answers(
    flags: dict[str, Any], oracle: Oracle, make_llm: MakeLLM
) -> None:
    for output in answers(make_llm(**flags), SHORT):
        oracle.follows(output)


def test_preempted_rows_answer_the_same(oracle: Oracle, make_llm: MakeLLM) -> None:
    before = total("aril_preemptions_total")
    outputs = answers(make_llm(kv_cache_memory="400KiB", enable_prefix_caching=False))
    assert total("aril_preemptions_total") > before
    for output in outputs:
        oracle.follows(output)


def test_rows_on_a_warm_prefix_cache_answer_the_same(oracle: Oracle, make_llm: MakeLLM) -> None:
    llm = make_llm()
    cold = answers(llm)
    warm = answers(llm)
    assert all(o.num_cached_tokens > 0 for o in warm if len(o.prompt_token_ids) > 16)
    assert [o.outputs[0].token_ids for o in warm] == [o.outputs[0].token_ids for o in cold]
    for output in warm:
        oracle.follows(output)


def test_base_rows_keep_their_bits_beside_adapters(make_llm: MakeLLM) -> None:
    prompts = [prompt(seed, 20) for seed in range(10)]
    mixed = [None, "qv", None, "all", None, "mlp", None, "late", None, "all"]
    params = dataclasses.replace(GREEDY, max_tokens=12)
    beside_adapters = make_llm().generate(prompts, params, adapter=mixed, use_tqdm=False)
    beside_base = make_llm().generate(prompts, params, use_tqdm=False)
    for one, other, adapter in zip(beside_adapters, beside_base, mixed, strict=True):
        if adapter is None:
            assert one.outputs[0].logprobs == other.outputs[0].logprobs


def test_rows_of_one_adapter_keep_their_answers_whoever_else_runs(oracle: Oracle, make_llm: MakeLLM) -> None:
    llm = make_llm()
    for name in ADAPTERS:
        for output in llm.generate(PROMPTS[:4], SHORT, adapter=name, use_tqdm=False):
            oracle.follows(output)


def total(name: str) -> float:
    """A metric's value now."""
    return metrics.REGISTRY.get_sample_value(name) or 0.0
