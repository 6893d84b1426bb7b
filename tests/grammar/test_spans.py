"""Texts that are free but for what stands behind a mark, with every backend that is installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Sequence

import numpy as np
import pytest
from aril.core.errors import InvalidRequest
from aril.engine.grammar.asked import StructuredOutputs
from aril.engine.grammar.backends import REGISTRY
from aril.engine.grammar.base import Backend, Vocabulary
from aril.engine.grammar.constraint import Constraint
from aril.engine.grammar.constraints import Constraints
from aril.engine.grammar.spanned import SpannedGrammar
from aril.engine.grammar.spans import Part, Spans
from aril.engine.grammar.thoughts import Thoughts
from builders.grammars import tokens_of

CITY = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
)
ANY = '{"type": "object"}'
MARK = "<call>"
SPANS = Spans((MARK,), ((Part(schema=CITY),), (Part(words="now"), Part(regex="[0-9]{2}"), Part(schema=ANY))))
ASKED = StructuredOutputs(spans=SPANS, param="tools")
PARIS = '{"city": "Paris"}'
NAMES = [name for name in REGISTRY.names() if importlib.util.find_spec(name)]


@pytest.fixture(scope="module")
def merged(vocabulary: Vocabulary) -> Vocabulary:
    """With tokens that end the mark and go on, in ways that may and may not be, or hold all of it."""
    room = iter(range(len(vocabulary.tokens) - 40, len(vocabulary.tokens)))
    tokens = list(vocabulary.tokens)
    for text in (b'>{"', b">\n", b">no", b'>{"town', b"> and so on", b"!<call>", b'!<call>{"', b"!<call>yes", b"}\n"):
        tokens[next(room)] = text
    return dataclasses.replace(vocabulary, tokens=tokens)


@pytest.fixture(scope="module", params=NAMES)
def backend(request: pytest.FixtureRequest, merged: Vocabulary) -> Backend:
    return REGISTRY[request.param](merged)


def constraint(
    backend: Backend, vocabulary: Vocabulary, thoughts: Thoughts | None = None, output: Sequence[int] = ()
) -> Constraint:
    grammar = SpannedGrammar(ASKED, backend.compile(ASKED), vocabulary)
    tokens = vocabulary.tokens
    made = Constraints(lambda _: grammar, len(tokens), vocabulary.eos, tokens.__getitem__)
    return made.of(ASKED, thoughts, ends=vocabulary.eos, output=output)


def allowed(row: Constraint, vocabulary: Vocabulary) -> set[int]:
    """The tokens that may come next."""
    bits = row.bits()
    if bits is None:
        return set(range(len(vocabulary.tokens)))
    return set(np.unpackbits(bits.view(np.uint8), bitorder="little")[: len(vocabulary.tokens)].nonzero()[0].tolist())


def take(row: Constraint, token: int) -> None:
    row.bits()
    if row.took(token):
        row.fill()


def write(row: Constraint, vocabulary: Vocabulary, text: str) -> str:
    """What of `text` may come, by the longest token that is allowed and fits."""
    rest = text.encode()
    while rest:
        fitting = [
            t for t in allowed(row, vocabulary) if vocabulary.tokens[t] and rest.startswith(vocabulary.tokens[t])
        ]
        if not fitting:
            break
        token = max(fitting, key=lambda t: len(vocabulary.tokens[t]))
        take(row, token)
        rest = rest[len(vocabulary.tokens[token]) :]
    return text.encode()[: len(text.encode()) - len(rest)].decode()


def piece(vocabulary: Vocabulary, text: str) -> int:
    return vocabulary.tokens.index(text.encode())


HELD = [
    f"Let me see. {MARK}{PARIS} So be it.",
    f"{MARK}\n{PARIS}\n</call>{MARK}now07{{}}",
    f'{MARK} now 12 {{"a": [1]}} {MARK}\n{{ "city" : "Rome"\n}}',
    "Nothing is called, < neither > here <cal l> nor there.",
]
NOT_HELD = [
    (f"{MARK}no", "w", "thing"),
    (f'{MARK}{{"city": "', "Paris", "Ulm"),
    (f"{PARIS}{MARK}", "now11{", "and so on"),
    (f"{MARK}{PARIS}!{MARK}", "{", "yes"),
]


@pytest.mark.parametrize("text", HELD)
def test_a_text_whose_spans_are_of_the_form_may_come(backend: Backend, merged: Vocabulary, text: str) -> None:
    assert write(constraint(backend, merged), merged, text) == text


@pytest.mark.parametrize(("before", "right", "wrong"), NOT_HELD)
def test_behind_a_mark_no_other_may(backend: Backend, merged: Vocabulary, before: str, right: str, wrong: str) -> None:
    for after in (right, wrong):
        row = constraint(backend, merged)
        found = write(row, merged, before + after)
        assert (found == before + after) is (after == right)


def test_outside_of_spans_there_is_no_mask(backend: Backend, merged: Vocabulary) -> None:
    row = constraint(backend, merged)
    take(row, piece(merged, "!<call>"))
    assert row.bits() is not None
    assert write(row, merged, PARIS) == PARIS
    plain = dataclasses.replace(merged, tokens=[b"" if MARK.encode() in t else t for t in merged.tokens])
    row = constraint(backend, plain)
    for text in ("a", "<", "ca", ">"):
        assert row.bits() is None
        assert write(row, plain, text) == text
    assert row.bits() is None
    for token in (*plain.special, *(t for t, text in enumerate(plain.tokens) if text == b"\xc3")):
        assert token in allowed(row, plain)


def test_a_token_that_goes_on_beyond_a_mark_comes_only_if_a_form_begins_so(
    backend: Backend, merged: Vocabulary
) -> None:
    row = constraint(backend, merged)
    write(row, merged, "<call")
    may = {
        text
        for text in (">", '>{"', ">\n", ">no", '>{"town', "> and so on")
        if piece(merged, text) in allowed(row, merged)
    }
    assert may == {">", '>{"', ">\n", ">no"}


@pytest.mark.parametrize("opening", ['>{"', ">\n", ">no"])
def test_a_span_goes_on_from_the_middle_of_a_token(backend: Backend, merged: Vocabulary, opening: str) -> None:
    row = constraint(backend, merged)
    write(row, merged, "<call")
    take(row, piece(merged, opening))
    rest = {'>{"': 'city": "Rome"}', ">\n": PARIS, ">no": "w11{}"}[opening]
    assert (write(row, merged, rest), row.bits() is None or not row.done) == (rest, True)


def test_a_text_may_end_where_no_span_is_open(backend: Backend, merged: Vocabulary) -> None:
    row = constraint(backend, merged)
    ends = []
    for text in ("Yes", MARK, '{"city": ', '"Rome"', "}", " then"):
        write(row, merged, text)
        ends.append(set(merged.eos) <= allowed(row, merged))
    assert ends == [True, False, False, False, True, True]


@pytest.mark.parametrize("came", [f"{MARK}{PARIS} and", f"{MARK}{PARIS[:9]}", "<cal"])
def test_a_text_goes_on_from_where_it_was(backend: Backend, merged: Vocabulary, came: str) -> None:
    rest = (f"{MARK}{PARIS} and {MARK}{PARIS}").removeprefix(came)
    row = constraint(backend, merged, output=tokens_of(merged, came))
    assert write(row, merged, rest) == rest


def test_a_mark_amid_thoughts_is_none(backend: Backend, merged: Vocabulary) -> None:
    row = constraint(backend, merged, Thoughts(("</think>",), are_open=True))
    thought = f"{MARK} perhaps</think>"
    assert write(row, merged, thought) == thought
    assert write(row, merged, MARK + "perhaps") == MARK


def test_a_special_token_may_be_a_part_of_a_form(vocabulary: Vocabulary) -> None:
    spans = Spans((MARK,), ((Part(words="now"), Part(words="<|im_start|>"), Part(schema=ANY)),))
    asked = StructuredOutputs(spans=spans, param="tools")
    grammar = SpannedGrammar(asked, REGISTRY["llguidance"](vocabulary).compile(asked), vocabulary)
    made = Constraints(lambda _: grammar, len(vocabulary.tokens), vocabulary.eos, vocabulary.tokens.__getitem__)
    row = made.of(asked, None, ends=vocabulary.eos, output=tokens_of(vocabulary, f"{MARK}now"))
    take(row, piece(vocabulary, "<|im_start|>"))
    assert write(row, vocabulary, "{} and on") == "{} and on"


@pytest.mark.skipif("xgrammar" not in NAMES, reason="xgrammar is not installed")
def test_xgrammar_refuses_a_form_with_a_special_token(vocabulary: Vocabulary) -> None:
    asked = StructuredOutputs(spans=Spans((MARK,), ((Part(words="<|im_start|>"),),)), param="tools")
    with pytest.raises(InvalidRequest, match="special token"):
        REGISTRY["xgrammar"](vocabulary).compile(asked)


def test_what_of_a_schema_cannot_be_held_to_is_refused(backend: Backend) -> None:
    part = Part(schema='{"type": "object", "properties": {"a": {"not": {"type": "string"}}}, "required": ["a"]}')
    with pytest.raises(InvalidRequest) as error:
        backend.compile(StructuredOutputs(spans=Spans((MARK,), ((part,),)), param="tools"))
    assert error.value.param == "tools"
