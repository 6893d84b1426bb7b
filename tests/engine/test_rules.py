"""`allowed_token_ids` and `bad_words`: what may not come does not, and rows that ask for nothing keep their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.core.errors import InvalidRequest
from aril.engine.engine import Engine
from aril.engine.logits import BadWords, RuledRow, apply_rules
from aril.engine.params import MAX_BAD_WORDS, SamplingParams
from builders.engines import Told, ask, drain, greedy, make_engine, run
from builders.models import make_model
from hypothesis import given
from hypothesis import strategies as st

PROMPT = list(range(40, 60))
ALLOWED = [70, 71, 72, 90, 300]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("rules"))


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    made = make_engine(model)
    yield made
    made.close()


def drawn(seed: int, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"seed": seed, "max_tokens": 40, "ignore_eos": True, **fields})


def one(engine: Engine, params: SamplingParams) -> Told:
    return run(engine, ask([PROMPT], params))[0]


words = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6)


@given(words, st.lists(st.integers(0, 3), max_size=12), st.integers(0, 12))
def test_what_would_complete_a_sequence_is_told_after_every_token(
    sequences: list[list[int]], output: list[int], met: int
) -> None:
    bad = BadWords(sequences, output[:met])
    for token in output[met:]:
        bad.add(token)
    wanted = {last for *before, last in sequences if output[len(output) - len(before) :] == before}
    assert set(bad.tokens().tolist()) == wanted


def test_only_allowed_tokens_are_left_and_their_logits_untouched() -> None:
    logits = torch.randn(2, 400, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    row = RuledRow.of(SamplingParams(allowed_token_ids=ALLOWED), [5], [], [2])
    apply_rules(logits, [(1, row)])
    assert logits[1].isfinite().nonzero()[:, 0].tolist() == ALLOWED
    assert torch.equal(logits[1, ALLOWED], before[1, ALLOWED])
    assert torch.equal(logits[0], before[0])


def test_only_allowed_tokens_come(engine: Engine) -> None:
    told = run(engine, ask([PROMPT] * 6, [drawn(seed, allowed_token_ids=ALLOWED) for seed in range(6)]))
    assert {token for each in told for token in each.token_ids} == set(ALLOWED)


def test_bad_words_do_not_come_with_a_space_or_without(engine: Engine) -> None:
    plain = one(engine, greedy(60))
    bad = tuple(dict.fromkeys(text for text in plain.text.split() if text.isascii()))[:5]
    told = one(engine, greedy(60, bad_words=bad))
    spelled = [engine.text.encode(space + word) for word in bad for space in ("", " ")]
    assert bad
    assert any(holds(plain.token_ids, ids) for ids in spelled)
    assert not any(holds(told.token_ids, ids) for ids in spelled)


def holds(tokens: list[int], part: list[int]) -> bool:
    return any(tokens[at : at + len(part)] == part for at in range(len(tokens)))


def test_a_word_of_two_tokens_may_be_begun_and_not_ended(engine: Engine) -> None:
    first, second, third = ALLOWED[:3]
    params = drawn(1, allowed_token_ids=(first, second, third), bad_words_ids=((first, second), (third, third)))
    tokens = one(engine, params).token_ids
    assert {first, second, third} == set(tokens)
    assert not holds(tokens, [first, second])
    assert not holds(tokens, [third, third])


def test_a_word_of_blanks_is_its_blanks(engine: Engine) -> None:
    spelled = engine.text.spelled(SamplingParams(bad_words=("\n", " ", " a", "a")))
    wanted = [engine.text.encode(text) for text in ("\n", " \n", " ", "a", " a")]
    assert spelled.bad_words_ids == tuple(map(tuple, wanted))


def test_a_mixed_batch_says_what_each_says_alone(engine: Engine) -> None:
    mixed = [
        greedy(30),
        drawn(1, allowed_token_ids=ALLOWED),
        drawn(2, bad_words=("a", "the", "e")),
        drawn(3, allowed_token_ids=ALLOWED, bad_words_ids=((70,), (71, 72)), repetition_penalty=1.2),
        drawn(4, structured_outputs={"regex": "[a-z]{9,30}"}, bad_words=("e",)),
        drawn(5, top_p=0.9),
    ]
    together = run(engine, ask([PROMPT] * len(mixed), mixed))
    assert [told.token_ids for told in together] == [one(engine, params).token_ids for params in mixed]


def test_each_of_several_choices_has_its_own_past(engine: Engine) -> None:
    (request,) = ask([PROMPT], drawn(7, n=4, allowed_token_ids=ALLOWED, bad_words_ids=((70, 71), (72, 90, 300))))
    engine.add(request)
    for told in drain(engine).values():
        assert not holds(told.token_ids, [70, 71])
        assert not holds(told.token_ids, [72, 90, 300])


def test_a_preempted_request_keeps_its_past(model: Path) -> None:
    params = [drawn(seed, allowed_token_ids=ALLOWED, bad_words_ids=((70, 71), (72, 72, 90))) for seed in range(4)]
    tight = make_engine(model, kv_cache_memory="96KiB", block_size=8, max_model_len=96)
    roomy = make_engine(model)
    wanted = run(roomy, ask([PROMPT] * 4, params))
    requests = ask([PROMPT] * 4, params)
    found = run(tight, requests)
    for engine in (tight, roomy):
        engine.close()
    assert sum(request.num_preemptions for request in requests) > 0
    assert [told.token_ids for told in found] == [told.token_ids for told in wanted]


def test_a_constraint_and_allowed_tokens_leave_what_both_allow(engine: Engine) -> None:
    letters = [engine.text.encode(letter)[0] for letter in "abc"]
    told = one(engine, drawn(0, structured_outputs={"regex": "[bcd]{6}"}, allowed_token_ids=letters))
    assert set(told.text) == {"b", "c"}
    assert (len(told.text), told.finish_reason) == (6, "stop")


def test_no_token_in_common_fails_that_request_alone(engine: Engine) -> None:
    allowed = engine.text.encode("z")
    params = [drawn(0, structured_outputs={"regex": "[0-9]{3}"}, allowed_token_ids=allowed), greedy(8)]
    failed, other = run(engine, ask([PROMPT] * 2, params))
    assert (failed.finish_reason, type(failed.error)) == ("error", InvalidRequest)
    assert other.token_ids == one(engine, greedy(8)).token_ids


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": (70,), "bad_words_ids": ((70,),)}, "allowed_token_ids"),
        ({"bad_words_ids": tuple((token,) for token in range(512))}, "bad_words"),
        ({"allowed_token_ids": (2,), "ignore_eos": False, "min_tokens": 3}, "allowed_token_ids"),
    ],
)
def test_where_nothing_is_left_the_field_is_named(engine: Engine, fields: dict[str, Any], param: str) -> None:
    failed, other = run(engine, ask([PROMPT] * 2, [drawn(0, **fields), greedy(8)]))
    assert isinstance(failed.error, InvalidRequest)
    assert failed.error.param == param
    assert len(other.token_ids) == 8


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"bad_words": ("",)}, "bad_words"),
        ({"bad_words_ids": ((),)}, "bad_words"),
        ({"bad_words": ("x" * (MAX_BAD_WORDS + 1),)}, "bad_words"),
    ],
)
def test_what_asks_for_nothing_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)
    assert caught.value.param == param


def test_words_beyond_the_vocabulary_of_the_model_cannot_come_anyway(engine: Engine) -> None:
    told = one(engine, greedy(8, bad_words_ids=((999,), (5, 512))))
    assert told.token_ids == one(engine, greedy(8)).token_ids
