"""Constraints that break who compiles them unguarded: by time, by memory, by the depth of their nesting."""

from __future__ import annotations

import json
from typing import Any


def nested(depth: int) -> dict[str, Any]:
    """Objects in objects."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def chained(length: int) -> dict[str, Any]:
    """References to references."""
    links: dict[str, Any] = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(length)}
    return {"$defs": {**links, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


HOSTILE: dict[str, dict[str, Any]] = {
    "nested 100 deep, as text": {"json": json.dumps(nested(100))},
    "nested 20,000 deep, as text": {"json": '{"type":"array","items":' * 20_000 + "{}" + "}" * 20_000},
    "20,000 references in a row": {"json": chained(20_000)},
    "10,000 alternatives of objects": {
        "json": {"anyOf": [{"type": "object", "properties": {f"k{at}": nested(0)}} for at in range(10_000)]}
    },
    "10,000 properties": {
        "json": {"type": "object", "properties": {f"k{at}": {"type": "integer"} for at in range(10_000)}}
    },
    "40 patterns at once": {"json": {"allOf": [{"type": "string", "pattern": f"a.{{{at}}}b"} for at in range(40)]}},
    "expressions intersected": {"grammar": "start: A\nA: " + " & ".join(f"/.*a.{{{at}}}b.*/" for at in range(3, 40))},
    "parentheses 3,000 deep": {"regex": "(" * 3000 + "a" + ")" * 3000},
    "repetitions of repetitions": {"regex": "(" * 200 + "a" + "{1,9})" * 200},
    "a grammar in parentheses": {"grammar": "start: " + "(" * 100_000 + '"a"' + ")" * 100_000},
}
HARMLESS: dict[str, dict[str, Any]] = {  # what looks hostile, and is answered like any other
    "10,000 choices": {"choice": [f"value {at} of {at * 7919 % 10_007}" for at in range(10_000)]},
    "catastrophic for those who backtrack": {"regex": "(a+)+b"},
    "100,000 repetitions": {"regex": "(x|y){1,100000}"},
}
