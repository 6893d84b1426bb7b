"""Embeddings are the last hidden states of transformers and PEFT, pooled, whatever shares the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from aril.core import metrics
from aril.engine.llm import LLM
from aril.engine.params import SamplingParams
from aril.engine.request import Request
from aril.lora.adapter import AdapterRef
from aril.lora.store import content_digest
from builders.engines import drain, greedy, make_engine
from torch import Tensor

from .conftest import EVERYONE, PROMPTS, MakeLLM, Oracle, crossed, prompt

LONG = prompt(7, 300)
POOLINGS = ("last", "mean")


def expected(oracle: Oracle, adapter: str | None, tokens: Sequence[int], pooling: str) -> Tensor:
    """The vector, at its own length."""
    oracle.logits(adapter, tokens)  # makes the model
    with torch.no_grad():
        answer = oracle.models[adapter](input_ids=torch.tensor([tokens]), output_hidden_states=True)
    states = answer.hidden_states[-1][0]  # [tokens, hidden], after the final norm
    return states[-1] if pooling == "last" else states.mean(0)


def assert_exact(oracle: Oracle, llm: LLM, pooling: Any, prompts: list[list[int]], who: list[str | None]) -> None:
    found = llm.embed(prompts, pooling=pooling, normalize=False, adapter=who, use_tqdm=False)
    for output, tokens, adapter in zip(found, prompts, who, strict=True):
        truth = expected(oracle, adapter, tokens, pooling)
        torch.testing.assert_close(torch.tensor(output.outputs.embedding), truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_base_and_adapters_in_one_batch_embed_as_transformers_and_peft_do(
    pooling: str, oracle: Oracle, make_llm: MakeLLM
) -> None:
    assert_exact(oracle, make_llm(), pooling, *crossed(PROMPTS))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_long_prompt_in_many_chunks_embeds_the_same(pooling: str, oracle: Oracle, make_llm: MakeLLM) -> None:
    llm = make_llm(max_num_batched_tokens=32, max_num_seqs=4)
    assert_exact(oracle, llm, pooling, [LONG] * len(EVERYONE), list(EVERYONE))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_warm_prefix_cache_changes_no_vector(pooling: str, oracle: Oracle, make_llm: MakeLLM) -> None:
    llm = make_llm()
    assert_exact(oracle, llm, pooling, *crossed([LONG]))
    assert_exact(oracle, llm, pooling, *crossed([LONG]))


def test_only_the_last_token_can_do_with_a_cached_prefix(make_llm: MakeLLM) -> None:
    llm = make_llm()
    llm.embed(LONG, use_tqdm=False)
    [last], [mean] = (llm.embed(LONG, pooling=pooling, use_tqdm=False) for pooling in POOLINGS)
    assert last.num_cached_tokens > 0
    assert mean.num_cached_tokens == 0


@pytest.mark.parametrize("pooling", POOLINGS)
def test_preempted_prompts_embed_the_same(pooling: Any, oracle: Oracle) -> None:
    ref = AdapterRef("all", 1, content_digest(oracle.adapters["all"]))
    flags: dict[str, Any] = {"kv_cache_memory": "160KiB", "max_num_seqs": 4, "max_num_batched_tokens": 4}
    engine = make_engine(oracle.base, {ref: oracle.adapters["all"]}, **flags)
    before = metrics.REGISTRY.get_sample_value("aril_preemptions_total") or 0.0
    talk, text = prompt(1, 30), prompt(2, 100)
    for at in range(2):
        engine.add(Request(f"talk{at}", talk, greedy(40)))
        engine.add(Request(f"base{at}", text, SamplingParams.embedding(pooling), priority=1))
        engine.add(Request(f"adapter{at}", text, SamplingParams.embedding(pooling), ref, priority=1))
    told = drain(engine)
    engine.close()
    assert (metrics.REGISTRY.get_sample_value("aril_preemptions_total") or 0.0) > before
    for at in range(2):
        assert told[f"talk{at}", 0].token_ids == oracle.continues(None, talk, 40)
        for name, adapter in (("base", None), ("adapter", "all")):
            vector = told[f"{name}{at}", 0].embedding
            assert vector is not None
            truth = expected(oracle, adapter, text, pooling)
            torch.testing.assert_close(torch.from_numpy(vector), truth, rtol=1e-4, atol=1e-4)


def test_generating_rows_beside_them_answer_as_alone(oracle: Oracle) -> None:
    engine = make_engine(oracle.base, max_num_batched_tokens=16)
    engine.add(Request("talk", PROMPTS[2], greedy(12)))
    for at, pooling in enumerate(POOLINGS * 3):
        engine.add(Request(f"embed{at}", PROMPTS[at], SamplingParams.embedding(pooling)))  # type: ignore[arg-type]
    told = drain(engine)
    engine.close()
    assert told["talk", 0].token_ids == oracle.continues(None, PROMPTS[2], 12)
    for at, pooling in enumerate(POOLINGS * 3):
        vector = told[f"embed{at}", 0].embedding
        assert vector is not None
        truth = expected(oracle, None, PROMPTS[at], pooling)
        torch.testing.assert_close(torch.from_numpy(vector), truth, rtol=1e-4, atol=1e-4)


def test_a_prompt_as_long_as_the_context_can_be_embedded(oracle: Oracle, make_llm: MakeLLM) -> None:
    assert_exact(oracle, make_llm(max_model_len=64), "last", [LONG[:64]], [None])


def test_vectors_have_length_one_unless_asked_otherwise(make_llm: MakeLLM) -> None:
    [one] = make_llm().embed(LONG, use_tqdm=False)
    assert torch.tensor(one.outputs.embedding).norm().item() == pytest.approx(1, abs=1e-6)
