"""What every grammar backend does alike: one test for each claim, run on each backend that is installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from typing import Any

import numpy as np
import pytest
from aril.core.errors import InvalidRequest
from aril.engine.grammar.asked import StructuredOutputs
from aril.engine.grammar.backends import REGISTRY
from aril.engine.grammar.base import Backend, Vocabulary, words_of
from builders.grammars import allowed, may_end, takes, tokens_of, vocabulary_of

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
EBNF = 'root ::= "(" root ")" | "x"'
TAKEN: list[tuple[dict[str, Any], str]] = [
    ({"json": PERSON}, '{"name": "Ann", "age": 7}'),
    ({"json": PERSON}, '{\n  "name": "J\u00e9r\\"\\nome",\n  "age": 70\n}'),
    ({"json": json.dumps(PERSON)}, '{"name":"","age":0}'),
    ({"json": PERSON, "disable_any_whitespace": True}, '{"name":"","age":0}'),
    ({"json": {"enum": ["red", 5, None]}}, "null"),
    ({"json": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}, "[true, false]"),
    ({"json": {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}}, "[[[]], []]"),
    ({"json": {"type": "string", "pattern": "^[a-f]+$"}}, '"cafe"'),
    ({"json_object": True}, '{"a": [1, {"b": null}]}'),
    ({"regex": "[a-z]{2,4}@[a-z]+\\.org"}, "ab@cd.org"),
    ({"regex": "a*"}, ""),
    ({"regex": "(caf\u00e9|\U0001f642)+"}, "caf\u00e9\U0001f642caf\u00e9"),
    ({"choice": ["yes", "no", "yes, but"]}, "yes"),
    ({"choice": ["yes", "no", "yes, but"]}, "yes, but"),
    ({"choice": ['"quoted"\\n', "\u4f60\u597d"]}, '"quoted"\\n'),
    ({"choice": ['"quoted"\\n', "\u4f60\u597d"]}, "\u4f60\u597d"),
    ({"grammar": EBNF}, "((x))"),
]
NOT_TAKEN: list[tuple[dict[str, Any], str]] = [
    ({"json": PERSON}, '{"name": "Ann"}'),
    ({"json": PERSON}, '{"name": "Ann", "age": -7}'),
    ({"json": PERSON}, '{"name": "Ann", "age": 7, "sex": 1}'),
    ({"json": PERSON}, ' {"name": "Ann", "age": 7}'),
    ({"json": PERSON}, '{"name": "Ann", "age": 7} and more'),
    ({"json": PERSON}, '{"name": "A' + "\n" + 'nn", "age": 7}'),
    ({"json": PERSON, "disable_any_whitespace": True}, '{"name": "","age":0}'),
    ({"json": PERSON}, "{" + " " * 60 + '"name": "","age":0}'),
    ({"json": {"enum": ["red", 5, None]}}, '"blue"'),
    ({"json_object": True}, "[]"),
    ({"regex": "[a-z]{2,4}@[a-z]+\\.org"}, "ab@cd.com"),
    ({"regex": "b"}, "ab"),
    ({"choice": ["yes", "no"]}, "yes, but"),
    ({"choice": ["yes", "no"]}, ""),
    ({"grammar": EBNF}, "((x)"),
]
REFUSED: list[dict[str, Any]] = [
    {"regex": "(?=a)b"},
    {"regex": "(a"},
    {"json": {"type": "strnig"}},
    {"json": {"not": {"type": "string"}}},
    {"json": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
    {"json": {"$ref": "#/nowhere"}},
    {"grammar": "root ::= @"},
    {"grammar": "root ::= other"},
]
NAMES = [name for name in REGISTRY.names() if importlib.util.find_spec(name)]


@pytest.fixture(scope="module", params=NAMES)
def backend(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> Backend:
    return REGISTRY[request.param](vocabulary)


def asked(fields: dict[str, Any]) -> StructuredOutputs:
    return StructuredOutputs(**fields)


def ids(cases: list[Any]) -> list[str]:
    return [json.dumps(case)[:60] for case in cases]


def test_the_default_backend_is_installed() -> None:
    assert "llguidance" in NAMES


@pytest.mark.parametrize(("fields", "text"), TAKEN, ids=ids(TAKEN))
def test_a_text_of_the_language_may_come(backend: Backend, vocabulary: Vocabulary, fields: Any, text: str) -> None:
    assert takes(backend.compile(asked(fields)).matcher(), vocabulary, text)


@pytest.mark.parametrize(("fields", "text"), NOT_TAKEN, ids=ids(NOT_TAKEN))
def test_no_other_text_may_come(backend: Backend, vocabulary: Vocabulary, fields: Any, text: str) -> None:
    assert not takes(backend.compile(asked(fields)).matcher(), vocabulary, text)


@pytest.mark.parametrize("fields", REFUSED, ids=ids(REFUSED))
def test_what_cannot_be_held_to_is_refused_with_a_reason(backend: Backend, fields: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        backend.compile(asked(fields))
    assert (error.value.param, len(error.value.message) > 25) == ("structured_outputs", True)


def test_a_good_grammar_after_a_bad_one_is_as_good(backend: Backend, vocabulary: Vocabulary) -> None:
    good = asked({"choice": ["yes", "no"]})
    before = allowed(backend.compile(good).matcher(), vocabulary)
    with pytest.raises(InvalidRequest):
        backend.compile(asked({"regex": "(a"}))
    assert allowed(backend.compile(good).matcher(), vocabulary) == before


def test_the_end_is_allowed_exactly_where_the_text_may_end(backend: Backend, vocabulary: Vocabulary) -> None:
    matcher = backend.compile(asked({"regex": "a{2,3}"})).matcher()
    ends = []
    (a,) = tokens_of(vocabulary, "a")
    for _ in range(3):
        ends.append(may_end(matcher, vocabulary))
        matcher.accept(a)
    assert (ends, allowed(matcher, vocabulary)) == ([False, False, True], set(vocabulary.eos))


def test_neither_special_tokens_nor_ids_without_a_token_are_allowed(backend: Backend, vocabulary: Vocabulary) -> None:
    found = allowed(backend.compile(asked({"regex": "(.|\\n)*"})).matcher(), vocabulary)
    assert found & (vocabulary.special - set(vocabulary.eos)) == set()
    assert {t for t in found if not vocabulary.tokens[t]} == set()
    assert len(found) > 400


def test_matchers_of_one_grammar_do_not_touch_each_other(backend: Backend, vocabulary: Vocabulary) -> None:
    grammar = backend.compile(asked({"json": PERSON}))
    first, second = grammar.matcher(), grammar.matcher()
    start = allowed(second, vocabulary)
    assert takes(first, vocabulary, '{"name": "Ann", "age": 7}')
    assert (allowed(second, vocabulary), allowed(grammar.matcher(), vocabulary)) == (start, start)


@pytest.mark.parametrize("count", [1, 3, 6])
def test_a_rollback_brings_back_the_masks(backend: Backend, vocabulary: Vocabulary, count: int) -> None:
    matcher = backend.compile(asked({"json": PERSON})).matcher()
    masks, tokens = [], []
    for _ in range(8):
        found = allowed(matcher, vocabulary)
        masks.append(found)
        tokens.append(max(found - set(vocabulary.eos)))
        matcher.accept(tokens[-1])
    matcher.rollback(count)
    again = []
    for token in tokens[-count:]:
        again.append(allowed(matcher, vocabulary))
        matcher.accept(token)
    assert again == masks[-count:]


def test_a_rollback_to_the_beginning_is_a_new_matcher(backend: Backend, vocabulary: Vocabulary) -> None:
    matcher = backend.compile(asked({"choice": ["yes", "no"]})).matcher()
    start = allowed(matcher, vocabulary)
    (token, *_) = tokens_of(vocabulary, "no")
    matcher.accept(token)
    matcher.rollback(1)
    assert allowed(matcher, vocabulary) == start


def test_each_end_of_sequence_is_one(vocabulary: Vocabulary, backend: Backend) -> None:
    two = dataclasses.replace(vocabulary, eos=(0, 2))
    matcher = type(backend)(two).compile(asked({"regex": "a*"})).matcher()
    assert {0, 2} <= allowed(matcher, two)


def test_a_mask_has_a_bit_for_each_id(backend: Backend, vocabulary: Vocabulary) -> None:
    bits = np.full(words_of(len(vocabulary.tokens)), -1, np.int32)
    backend.compile(asked({"choice": ["yes"]})).matcher().fill(bits)
    flags = np.unpackbits(bits.view(np.uint8), bitorder="little")
    assert not flags[len(vocabulary.tokens) :].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_real_vocabulary_does_too(name: str) -> None:
    real = vocabulary_of("demo")
    backend = REGISTRY[name](real)
    assert takes(backend.compile(asked({"json": PERSON})).matcher(), real, '{"name": "Zo\u00eb \U0001f44b", "age": 12}')
    assert takes(
        backend.compile(asked({"choice": ["\U0001f44b\U0001f3fd", "b"]})).matcher(), real, "\U0001f44b\U0001f3fd"
    )
