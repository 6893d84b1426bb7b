"""The forms of calls that are held to the schemas of their tools: one object, or a list of them."""

from __future__ import annotations

import json

from ...engine.grammar.spans import Form, Part
from ..tool_schemas import schema_of_call, schema_of_calls
from .format import Tools


def one_call(tools: Tools, most: int | None = None, *, key: str = "arguments") -> tuple[Form, ...]:
    """`{"name": ..., "arguments": {...}}`; each stands behind a mark of its own, however many there may be."""
    return ((Part(schema=json.dumps(schema_of_call(tools, key))),),)


def list_of_calls(tools: Tools, most: int | None) -> tuple[Form, ...]:
    """`[{"name": ..., "arguments": {...}}, ...]`."""
    return ((Part(schema=json.dumps(schema_of_calls(tools, most=most))),),)
