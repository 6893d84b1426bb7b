"""What processes of one server say to each other comes out as it went in."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from aril.core import errors
from aril.core.callers import LOCAL, Caller, Scope
from aril.core.http_status import body_of, headers_of, status_of
from aril.engine.grammar.asked import StructuredOutputs
from aril.engine.grammar.spans import Part, Spans
from aril.engine.metering import Work
from aril.engine.params import SamplingParams
from aril.engine.request import Chunk, TokenLogprobs
from aril.lora.adapter import AdapterRef
from aril.lora.catalog import Resolution
from aril.server.generation import Generation
from aril.server.workers import wire

REF = AdapterRef("red", 3, "d" * 64)
PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5, "top_k": 7, "seed": -5, "max_tokens": None, "stop": ["a", "ü"], "logit_bias": {5: -1.5, 7: 2}},
    {"structured_outputs": {"json": {"type": "object", "properties": {"é": {"type": "integer"}}}}},
    {"structured_outputs": {"choice": ["yes", "no"]}, "n": 3, "logprobs": 0, "prompt_logprobs": 20},
    {"structured_outputs": {"regex": "[0-9]+", "whitespace_pattern": None}},
    {"structured_outputs": StructuredOutputs(spans=Spans(("<a>",), ((Part(words="b"), Part(schema="{}")),)))},
    {"bad_words": ["x"], "bad_words_ids": [[1, 2], [3]], "allowed_token_ids": [4, 5]},
    {"pooling": "mean", "max_tokens": 0, "temperature": 0.0},
]


def heard(message: wire.Message, decoder: Any) -> Any:
    """What the other end makes of a frame with that message alone."""

    async def read() -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(wire.frame([message]))
        return await wire.read_frame(reader)

    [found] = decoder.decode(asyncio.run(read()))
    return found


@pytest.mark.parametrize("fields", PARAMS, ids=str)
def test_a_generation_is_the_same_at_the_other_end(fields: dict[str, Any]) -> None:
    caller = Caller(
        name="key_a", tenant="acme", tenant_id=4, scopes=frozenset({Scope.INFER}), adapters=frozenset({"red"})
    )
    meant = Resolution(ref=REF, speaker="red@3", owner="acme", alias="prod", shadow=AdapterRef("red", 4, "e" * 64))
    params = SamplingParams(**fields)
    work = Work(caller=caller, resolution=meant, prompts=[[1, 2, 3], [4]], params=[params, params])
    asked = wire.Run(7, Generation("cmpl-1", "red", work, -2, headers={"a": "b"}))
    assert heard(asked, wire.FROM_WORKER) == asked


def test_a_chunk_is_the_same_at_the_other_end() -> None:
    scores = TokenLogprobs(5, -0.5, 1, {5: -0.5, 9: -1.25})
    chunk = Chunk("x-1", 2, [5, 6], "né\U0001f642", [scores], [None, scores], None, None, "stop", "DEF", 3, 1, 8)
    assert wire.chunk_of(heard(wire.news_of(3, 1, chunk), wire.FROM_MAIN), "x-1") == chunk


def test_a_vector_is_the_same_at_the_other_end() -> None:
    chunk = Chunk("x", 0, [], embedding=np.array([1.5, -2.25, 1e-30], np.float32))
    found = wire.chunk_of(heard(wire.news_of(3, 1, chunk), wire.FROM_MAIN), "x")
    assert found.embedding is not None
    assert found.embedding.tolist() == chunk.embedding.tolist()  # type: ignore[union-attr]


KINDS = sorted((kind for kind in vars(errors).values() if isinstance(kind, type)), key=lambda kind: kind.__name__)
EXTRA: dict[str, dict[str, Any]] = {
    "Misplaced": {"offset": 17},
    "RateLimited": {"retry_after": 2.5, "headers": {"x-ratelimit-limit-requests": "3"}},
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, errors.ArilError)])
def test_an_error_is_answered_alike_by_either_process(kind: type[errors.ArilError]) -> None:
    try:
        error = kind("what was wrong", **EXTRA.get(kind.__name__, {}))
    except TypeError:
        error = kind(**EXTRA.get(kind.__name__, {}))  # one whose words are always the same
    error.param, error.problems = "model", ("one", "two")
    found = wire.error_of(heard(wire.End(1, wire.failure_of(error)), wire.FROM_MAIN).failure)
    assert type(found) is kind
    assert (status_of(found), body_of(found), headers_of(found)) == (
        status_of(error),
        body_of(error),
        headers_of(error),
    )
    assert str(found) == str(error)


def test_an_error_of_no_kind_of_ours_goes_by_its_nearest() -> None:
    class Special(errors.NotFound):
        pass

    assert type(wire.error_of(wire.failure_of(Special("no")))) is errors.NotFound


def test_a_message_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError):
        wire.FROM_WORKER.decode(wire.frame([wire.Resolve(1, "m", LOCAL, None, {"a": 5})])[4:])  # type: ignore[dict-item]
