"""Beam search gives the texts of transformers' `generate(num_beams=...)`, token for token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from aril.core import metrics
from aril.engine.params import SamplingParams
from aril.engine.request import Request
from builders.engines import drain, greedy, make_engine
from transformers import AutoTokenizer

from .conftest import GREEDY, MakeLLM, Oracle, prompt

ENDS = list(range(100, 512, 7))  # tokens that end a text: enough for many to end early
FILLING = (-1, 511)
PROMPTS = [prompt(seed, length) for seed, length in ((1, 5), (2, 33), (3, 17), (4, 64))]


def search(width: int, *, n: int | None = None, **fields: Any) -> SamplingParams:
    asked = {"max_tokens": 16, "stop_token_ids": ENDS, "ignore_eos": True, **fields}
    return SamplingParams(use_beam_search=True, temperature=0.0, n=n or width, best_of=width, **asked)


def expected(oracle: Oracle, adapter: str | None, tokens: Sequence[int], params: SamplingParams) -> list[list[int]]:
    """What transformers finds, without what it fills up with."""
    oracle.logits(adapter, tokens[:1])  # has it loaded
    stops: dict[str, Any] = {}
    if params.stop:
        stops = {"stop_strings": list(params.stop), "tokenizer": AutoTokenizer.from_pretrained(oracle.base)}
    ends = [*params.stop_token_ids, *(() if params.ignore_eos else (2, 0))]
    found = oracle.models[adapter].generate(
        torch.tensor([tokens]),
        num_beams=params.num_beams,
        num_return_sequences=params.n,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        max_new_tokens=params.max_tokens,
        do_sample=False,
        eos_token_id=ends or None,
        pad_token_id=511,
        **stops,
    )
    return [_unfilled(row[len(tokens) :].tolist(), ends) for row in found]


def _unfilled(row: list[int], ends: list[int]) -> list[int]:
    """Up to the first end, or to what the row was filled up with."""
    if (first := next((at for at, token in enumerate(row) if token in ends), None)) is not None:
        return row[: first + 1]
    while row and row[-1] in FILLING:
        row.pop()
    return row


CASES: list[dict[str, Any]] = [
    {"width": 1},
    {"width": 2},
    {"width": 4},
    {"width": 4, "n": 1},
    {"width": 3, "n": 2, "length_penalty": 0.0},
    {"width": 4, "length_penalty": 2.0},
    {"width": 4, "length_penalty": -1.0},
    {"width": 4, "early_stopping": True},
    {"width": 3, "early_stopping": "never"},
    {"width": 3, "early_stopping": "never", "length_penalty": -0.5},
    {"width": 4, "max_tokens": 1},
    {"width": 5, "stop_token_ids": (), "max_tokens": 24},
    {"width": 5, "stop_token_ids": (), "ignore_eos": False},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_mixed_batch_finds_the_texts_that_transformers_finds(
    case: dict[str, Any], oracle: Oracle, make_llm: MakeLLM
) -> None:
    params = search(**case)
    asked = [(tokens, who, one) for tokens in PROMPTS for who in (None, "all", "mlp") for one in (params, GREEDY)]
    prompts, who, each = zip(*asked, strict=True)
    for output, one in zip(make_llm().generate(prompts, each, adapter=who, use_tqdm=False), each, strict=True):
        if one is GREEDY:
            oracle.follows(output)
            continue
        found = [choice.token_ids for choice in output.outputs]
        assert found == expected(oracle, output.adapter, output.prompt_token_ids, params)


CUTS: dict[str, dict[str, Any]] = {
    "chunks of 8": {"max_num_batched_tokens": 8, "max_num_seqs": 8},
    "one row at a time": {"max_num_seqs": 1},
    "fewer rows than beams": {"max_num_seqs": 3},
    "small blocks": {"block_size": 1},
    "no prefix cache": {"enable_prefix_caching": False},
    "little memory": {"kv_cache_memory": "150KiB", "enable_prefix_caching": False, "max_model_len": 96},
    "eager": {"enforce_eager": True},
}


@pytest.mark.parametrize("flags", CUTS.values(), ids=CUTS.keys())
def test_the_cut_of_the_work_does_not_change_the_texts(
    flags: dict[str, Any], oracle: Oracle, make_llm: MakeLLM
) -> None:
    params = search(4, max_tokens=20, stop_token_ids=ENDS[:10])
    who = [None, "all", None, "mlp"]
    before = metrics.REGISTRY.get_sample_value("aril_preemptions_total") or 0.0
    outputs = make_llm(**flags).generate(PROMPTS, params, adapter=who, use_tqdm=False)
    for output in outputs:
        found = [choice.token_ids for choice in output.outputs]
        assert found == expected(oracle, output.adapter, output.prompt_token_ids, params)
    if "kv_cache_memory" in flags:
        assert (metrics.REGISTRY.get_sample_value("aril_preemptions_total") or 0.0) > before


def test_texts_end_at_stop_strings_as_in_transformers(oracle: Oracle, make_llm: MakeLLM) -> None:
    llm = make_llm()
    stops = ("e", "0", "a", "\u0438", "s")
    params = search(4, stop_token_ids=(), stop=stops)
    outputs = llm.generate(PROMPTS, params, adapter=[None, "qv", "all", None], use_tqdm=False)
    choices = [choice for output in outputs for choice in output.outputs]
    for output in outputs:
        found = [choice.token_ids for choice in output.outputs]
        assert found == expected(oracle, output.adapter, output.prompt_token_ids, params)
    assert any(choice.stop_reason in stops for choice in choices)
    assert not any(stop in choice.text for choice in choices for stop in stops)


def test_scores_are_those_of_the_tokens(oracle: Oracle, make_llm: MakeLLM) -> None:
    params = search(4, n=3, logprobs=2, length_penalty=0.7)
    for output in make_llm().generate(PROMPTS, params, adapter=[None, "qv", "all", None], use_tqdm=False):
        scores = []
        for choice in output.outputs:
            logits = oracle.logits(output.adapter, output.prompt_token_ids + choice.token_ids)
            wanted = logits[len(output.prompt_token_ids) - 1 : -1].log_softmax(-1)
            assert choice.logprobs is not None
            assert [one.token_id for one in choice.logprobs] == choice.token_ids
            for one, row in zip(choice.logprobs, wanted, strict=True):
                assert one.logprob == pytest.approx(float(row[one.token_id]), abs=1e-3)
                assert list(one.top) == row.topk(2).indices.tolist()
            assert choice.cumulative_logprob is not None
            scores.append(choice.cumulative_logprob / len(choice.token_ids) ** 0.7)
        assert scores == sorted(scores, reverse=True)


def test_a_search_that_is_aborted_leaves_nothing(oracle: Oracle) -> None:
    engine = make_engine(oracle.base)
    free = engine.status().free_blocks
    engine.add(Request("beams", PROMPTS[1], search(4, stop_token_ids=(), max_tokens=100)))
    engine.add(Request("other", PROMPTS[2], greedy(8)))
    for _ in range(6):
        engine.step()
    engine.abort("beams")
    told = drain(engine)
    assert {told["beams", index].finish_reason for index in range(4)} == {"abort"}
    assert told["other", 0].token_ids == oracle.continues(None, PROMPTS[2], 8)[-len(told["other", 0].token_ids) :]
    assert engine.status().free_blocks == free
    engine.close()
