"""JSON schemas of real tools: whatever a model would rather say, what it says is JSON, and fulfils the schema.

The model is a random one, so that every answer is one that nobody would have written down.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from aril.core.errors import InvalidRequest
from aril.engine.engine import Engine
from aril.engine.grammar.asked import StructuredOutputs
from aril.engine.params import SamplingParams
from builders.engines import Told, ask, make_engine, run
from builders.models import make_model
from jsonschema import Draft202012Validator, FormatChecker

TOOLS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "tool_schemas.json").read_text())
STRING = {"type": "string"}
SHORT = {"type": "string", "maxLength": 4}
FEATURES: dict[str, Any] = {
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "oneOf": {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "boolean"}]},
    "exclusive bounds": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "minProperties": {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 2},
    "maxProperties": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    "pattern and length": {"type": "string", "pattern": "^[ab]+$", "minLength": 2, "maxLength": 4},
    "unanchored pattern": {"type": "string", "pattern": "b", "maxLength": 9},
    "anything": {},
    "several types": {"type": ["integer", "null", "boolean"]},
    "const object": {"const": {"a": [1, None, {"b": "c"}]}},
    "tuple": {"type": "array", "prefixItems": [{"type": "boolean"}, SHORT], "items": {"type": "null"}, "maxItems": 4},
    "a loop of references": {
        "$defs": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/b"}},
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, SHORT]},
        },
        "$ref": "#/$defs/a",
    },
    "additional properties": {"type": "object", "properties": {"a": SHORT}, "additionalProperties": {"type": "null"}},
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"x": SHORT},
        "$ref": "#/definitions/x",
    },
}
SCHEMAS = {**TOOLS, **FEATURES}
BEYOND_XGRAMMAR = {"multipleOf", "allOf", "oneOf", "pattern and length", "unanchored pattern"}
BEYOND_XGRAMMAR |= {"book_flight", "create_calendar_event", "extract_invoice"}
SEEDS = range(4)
FORMATS = FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
REFUSED = {  # what no answer is held to, as docs/openai.md lists it, and the word of the refusal
    "not": ({"not": STRING}, "not"),
    "uniqueItems": ({"type": "array", "items": STRING, "uniqueItems": True}, "uniqueItems"),
    "contains": ({"type": "array", "contains": STRING}, "contains"),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
    "if": ({"if": STRING, "then": {"minLength": 2}}, "if"),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    "unevaluatedProperties": ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    "dependentSchemas": ({"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas"),
    "unevaluatedItems": ({"type": "array", "unevaluatedItems": False}, "unevaluatedItems"),
    "$dynamicAnchor": ({"$dynamicAnchor": "a"}, "dynamicAnchor"),
    "patternProperties": ({"type": "object", "patternProperties": {"a": STRING, "b": SHORT}}, "two schemas"),
    "a count with a point": ({"type": "string", "maxLength": 2.0}, "`maxLength` is 2.0; it takes a whole number"),
    "$dynamicRef": ({"$dynamicRef": "#a"}, "dynamicRef"),
    "oneOf": ({"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "maximum": 9}]}, "oneOf"),
    "$ref": ({"$ref": "https://example.com/schema"}, "example.com"),
    "an unknown format": ({"type": "string", "format": "iri"}, "format"),
    "look-around in a pattern": ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    "a type that there is not": ({"type": "strnig"}, "`type` is 'strnig', which there is not; there are array"),
    "a bound of another type": ({"type": "integer", "minimum": "a"}, '`minimum` is "a"; it takes a number'),
    "a keyword of another type": ({"type": "object", "properties": []}, "`properties` takes an object"),
    "a reference to nothing": ({"items": {"$ref": "#/nowhere"}}, "`\\$ref` at #/items leads to #/nowhere"),
    "a place": (
        {"properties": {"not": {"items": [{"not": {}}]}}},
        "`not` at #/properties/not/items/0 cannot be held to",
    ),
    "a name that is escaped": ({"properties": {"a/b~c": {"not": {}}}}, "`not` at #/properties/a~1b~0c cannot"),
    "several": (
        {"type": "array", "uniqueItems": True, "contains": {}},
        r"`contains` cannot be held to \(nor uniqueItems\)",
    ),
    "properties that need not come": (
        {"type": "object", "properties": {"a": {}}, "minProperties": 1},
        "`minProperties` can only be held to where all of `properties` are `required`",
    ),
    "bounds without anything between": ({"type": "integer", "minimum": 5, "maximum": 1}, "nothing fulfils this schema"),
    "a schema that nothing fulfils": (False, "nothing fulfils"),
}


@FORMATS.checks("date", raises=ValueError)
def is_date(text: object) -> bool:
    """In a leap year that Python knows: the 29th of February may come in any year, and the year may be 0000."""
    return bool(date.fromisoformat(f"2024{str(text)[4:]}"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("schemas"))


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    made = make_engine(model, kv_cache_memory="16MiB", max_num_seqs=32)
    yield made
    made.close()


@pytest.fixture(scope="module")
def second(model: Path) -> Iterator[Engine]:
    """The same on the other backend."""
    pytest.importorskip("xgrammar")
    made = make_engine(model, kv_cache_memory="16MiB", max_num_seqs=32, grammar_backend="xgrammar")
    yield made
    made.close()


def impatient(engine: Engine) -> dict[int, float]:
    """A bias towards what ends strings, lists and objects: a random model would seldom."""
    enders = {ord(each) for each in '"]}'}
    pieces = {token: engine.text.token_bytes(token) for token in range(engine.model.vocab_size)}
    return {token: 4.0 for token, piece in pieces.items() if enders & set(piece)}


def answers(engine: Engine, schema: Any) -> list[Told]:
    outputs = {"json": schema}
    bias = impatient(engine)
    params = [SamplingParams(seed=s, max_tokens=450, structured_outputs=outputs, logit_bias=bias) for s in SEEDS]  # type: ignore[arg-type]
    return run(engine, ask([[40 + seed, 50] for seed in SEEDS], params))


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_parses_and_is_valid(engine: Engine, name: str) -> None:
    check(engine, SCHEMAS[name])


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name not in BEYOND_XGRAMMAR])
def test_it_does_so_with_xgrammar_too(second: Engine, name: str) -> None:
    check(second, SCHEMAS[name])


@pytest.mark.parametrize("name", sorted(BEYOND_XGRAMMAR))
def test_what_xgrammar_does_not_hold_to_is_refused(second: Engine, name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be held to"):
        answers(second, SCHEMAS[name])


def check(engine: Engine, schema: Any) -> None:
    """All but one of the answers come to their end, and those are what they should be."""
    validator = Draft202012Validator(schema, format_checker=FORMATS)
    found = answers(engine, schema)
    whole = [told.text for told in found if told.finish_reason == "stop"]
    assert len(whole) >= len(found) - 1, [told.text for told in found]
    for text in whole:
        validator.validate(json.loads(text))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_to_is_refused_by_name(engine: Engine, name: str) -> None:
    schema, word = REFUSED[name]
    with pytest.raises(InvalidRequest, match=word):
        answers(engine, schema)


def test_without_strict_it_is_passed_over(engine: Engine) -> None:
    outputs = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 2, "maxItems": 2}
    asked = StructuredOutputs(json=outputs, lenient=True)
    (told,) = run(engine, ask([[40]], SamplingParams(seed=0, max_tokens=50, structured_outputs=asked)))
    assert set(json.loads(told.text)) <= {1, 2}
