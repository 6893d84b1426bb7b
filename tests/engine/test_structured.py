"""Answers held to a constraint, by a real engine: alone, in batches, forked, preempted, beside other rules."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aril.core.errors import InvalidRequest
from aril.engine.engine import Engine
from aril.engine.params import SamplingParams
from aril.engine.request import Request
from builders.engines import Told, ask, drain, greedy, make_engine, run
from builders.models import make_model
from jsonschema import Draft202012Validator

PROMPT = list(range(40, 60))
COLOURS = ["red", "green", "green-blue", "\U0001f7e5\u00e9"]
SHORT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["seed", "fruit"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
GRAMMAR = 'start: "(" start ")" | /[xyz]{1,3}/'


def drawn(seed: int, outputs: Mapping[str, Any], **fields: Any) -> SamplingParams:
    return SamplingParams(**{"seed": seed, "max_tokens": 120, "structured_outputs": outputs, **fields})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("structured"))


@pytest.fixture(scope="module", params=[False, True], ids=["recorded", "eager"])
def engine(request: pytest.FixtureRequest, model: Path) -> Iterator[Engine]:
    made = make_engine(model, enforce_eager=request.param)
    yield made
    made.close()


def one(engine: Engine, params: SamplingParams) -> Told:
    return run(engine, ask([PROMPT], params))[0]


def many(engine: Engine, outputs: Mapping[str, Any], **fields: Any) -> list[Told]:
    """Twelve answers at temperature 1, all in one batch."""
    return run(engine, ask([PROMPT] * 12, [drawn(seed, outputs, **fields) for seed in range(12)]))


def test_every_answer_is_a_match_of_the_regex(engine: Engine) -> None:
    pattern = "(ab|[c-f]{2}|\u00e9){1,5}!"
    assert all(re.fullmatch(pattern, told.text) for told in many(engine, {"regex": pattern}))


def test_every_answer_is_one_of_the_choices_and_each_of_them_comes(engine: Engine) -> None:
    assert {told.text for told in many(engine, {"choice": COLOURS}, temperature=2.0)} <= set(COLOURS)


def test_every_answer_is_of_the_grammar(engine: Engine) -> None:
    for told in many(engine, {"grammar": GRAMMAR}):
        text = told.text if told.finish_reason == "stop" else "x" + ")" * told.text.count("(")
        assert re.fullmatch(r"\(*[xyz]{1,3}\)*", text)
        assert text.count("(") == text.count(")") or told.finish_reason == "length"


def test_every_answer_fulfils_the_schema_in_its_order(engine: Engine) -> None:
    for told in many(engine, {"json": SHORT}):
        assert told.finish_reason == "stop"
        answer = json.loads(told.text)
        Draft202012Validator(SHORT).validate(answer)
        assert list(answer) == ["name", "kind", "sizes"]


def test_an_object_is_asked_for_and_comes(engine: Engine) -> None:
    ended = [told for told in many(engine, {"json_object": True}, max_tokens=200) if told.finish_reason == "stop"]
    assert ended
    assert all(isinstance(json.loads(told.text), dict) for told in ended)


MIXED = [
    drawn(1, {"json": SHORT}),
    greedy(30),
    drawn(2, {"regex": "[a-z]{20,30}"}, logprobs=2),
    drawn(3, {"choice": COLOURS}, n=2),
    SamplingParams(seed=4, max_tokens=30, repetition_penalty=1.2),
    drawn(5, {"grammar": GRAMMAR}, temperature=0.0),
    drawn(6, {"json": SHORT}, top_p=0.8, presence_penalty=0.5, logit_bias={40: 5.0}),
]


def test_a_mixed_batch_says_what_each_says_alone(engine: Engine) -> None:
    prompts = [[*PROMPT, at] for at in range(len(MIXED))]
    together = run(engine, ask(prompts, MIXED))
    alone = [run(engine, ask([prompt], params))[0] for prompt, params in zip(prompts, MIXED, strict=True)]
    assert [told.token_ids for told in together] == [told.token_ids for told in alone]


def test_choices_of_one_request_are_held_each_for_itself(engine: Engine) -> None:
    (request,) = ask([PROMPT], drawn(7, {"json": SHORT}, n=5))
    engine.add(request)
    texts = [told.text for told in drain(engine).values()]
    assert len(set(texts)) > 1
    for text in texts:
        Draft202012Validator(SHORT).validate(json.loads(text))


def test_two_greedy_choices_are_alike(engine: Engine) -> None:
    (request,) = ask([PROMPT], drawn(0, {"json": SHORT}, n=2, temperature=0.0))
    engine.add(request)
    first, second = drain(engine).values()
    assert first.token_ids == second.token_ids


def test_a_preempted_request_goes_on_where_it_was(model: Path) -> None:
    params = [drawn(seed, {"regex": "([a-z]{3}-){12}[0-9]"}) for seed in range(4)]
    roomy, tight = make_engine(model), make_engine(model, kv_cache_memory="96KiB", block_size=8, max_model_len=96)
    wanted = run(roomy, ask([PROMPT] * 4, params))
    requests = ask([PROMPT] * 4, params)
    found = run(tight, requests)
    for engine in (roomy, tight):
        engine.close()
    assert sum(request.num_preemptions for request in requests) > 0
    assert [told.token_ids for told in found] == [told.token_ids for told in wanted]


def test_an_answer_cut_by_max_tokens_says_length(engine: Engine) -> None:
    told = one(engine, drawn(0, {"regex": "[a-z]{200}"}, max_tokens=5))
    assert (told.finish_reason, len(told.token_ids)) == ("length", 5)


def test_min_tokens_keeps_a_text_going_that_may_go_on(engine: Engine) -> None:
    told = one(engine, drawn(0, {"regex": "[ab]*"}, min_tokens=9, temperature=2.0))
    assert len(told.token_ids) >= 9


@pytest.mark.parametrize("fields", [{"min_tokens": 20}, {"ignore_eos": True}, {"min_tokens": 20, "ignore_eos": True}])
def test_a_text_that_cannot_go_on_ends(engine: Engine, fields: dict[str, Any]) -> None:
    told = one(engine, drawn(0, {"choice": ["yes"]}, **fields))
    assert (told.text, told.finish_reason, told.stop_reason) == ("yes", "stop", None)


def test_whoever_ignores_the_end_gets_all_that_the_grammar_has(engine: Engine) -> None:
    told = one(engine, drawn(0, {"regex": "a{0,9}"}, ignore_eos=True))
    assert (told.text, told.finish_reason) == ("a" * 9, "stop")


def test_a_stop_token_comes_only_where_the_text_may_end(engine: Engine) -> None:
    (z,) = engine.text.encode("z")
    for told in many(engine, {"regex": "[a-y]{9}[a-y]*"}, stop_token_ids=(z,), logit_bias={z: 9.0}):
        assert (told.finish_reason, told.stop_reason) == ("stop", z)
        assert re.fullmatch("[a-y]{9}[a-y]*", told.text)


def test_a_stop_token_that_the_text_needs_is_the_callers_fault(engine: Engine) -> None:
    (a,) = engine.text.encode("a")
    told, other = run(
        engine, ask([PROMPT] * 2, [drawn(0, {"regex": "a{3}#"}, stop_token_ids=(a,)), drawn(0, {"regex": "b"})])
    )
    assert (told.finish_reason, type(told.error), other.text) == ("error", InvalidRequest, "b")


def test_a_stop_string_cuts_the_text(engine: Engine) -> None:
    told = one(engine, drawn(0, {"choice": ["one STOP two"]}, stop=("STOP",)))
    assert (told.text, told.finish_reason, told.stop_reason) == ("one ", "stop", "STOP")


def test_no_bias_breaks_the_constraint(engine: Engine) -> None:
    digits = {token: -100.0 for token in range(engine.model.vocab_size) if engine.text.token_bytes(token).isdigit()}
    (bang,) = engine.text.encode("!")
    told = one(engine, drawn(0, {"regex": "[0-9]{4}"}, logit_bias={**digits, bang: 100.0}))
    assert re.fullmatch("[0-9]{4}", told.text)


def test_logprobs_are_those_of_the_untouched_distribution(engine: Engine) -> None:
    told = one(engine, drawn(0, {"regex": "[0-9]{6}"}, logprobs=3))
    assert [found.token_id for found in told.logprobs] == told.token_ids
    best = [next(iter(found.top)) for found in told.logprobs]
    assert best != told.token_ids  # else the constraint would have had nothing to do


def test_a_text_that_grows_too_complex_fails_alone(engine: Engine) -> None:
    complex_ = {"grammar": 'start: "x" A\nA: ~(~(/.*a.{300}/) & ~(/.*b.{300}c/))'}
    failed, sound = run(engine, ask([PROMPT] * 2, [drawn(0, complex_), drawn(1, {"choice": COLOURS})]))
    assert (failed.finish_reason, type(failed.error)) == ("error", InvalidRequest)
    assert sound.text in COLOURS


def test_a_bad_grammar_right_after_a_good_one_harms_nobody(engine: Engine) -> None:
    engine.add(Request("good", PROMPT, drawn(0, {"choice": COLOURS})))
    with pytest.raises(InvalidRequest):
        engine.add(Request("bad", PROMPT, drawn(0, {"regex": "(a"})))
    assert drain(engine)["good", 0].text in COLOURS


def test_an_aborted_request_leaves_its_matcher_behind(engine: Engine) -> None:
    engine.add(Request("gone", PROMPT, drawn(0, {"regex": "[a-z]{100}"})))
    for _ in range(3):
        engine.step()
    engine.abort("gone")
    drain(engine)
    assert one(engine, dataclasses.replace(drawn(0, {"regex": "b"}))).text == "b"


@pytest.mark.parametrize(
    "wrong", [{}, {"regex": "a", "choice": ["a"]}, {"choice": []}, {"choice": [""]}, {"regexp": "a"}, {"json": "{"}]
)
def test_half_a_constraint_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as error:
        SamplingParams(structured_outputs=wrong)  # type: ignore[arg-type]
    assert error.value.param == "structured_outputs"
