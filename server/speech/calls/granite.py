"""Granite 3: `<|tool_call|>[{"name": ..., "arguments": {...}}, ...]`."""

from __future__ import annotations

from ..format import CallFormat, Held
from ..held import list_of_calls
from ..json_calls import JsonCalls

MARKS = {"<|tool_call|>": ""}


def is_taught_by(template: str) -> bool:
    """By its mark."""
    return "<|tool_call|>" in template


EXPORT = CallFormat(JsonCalls(MARKS).read, tuple(MARKS), is_taught_by, held=Held(tuple(MARKS), list_of_calls))
