"""Granite 3: `<|tool_call|>[{"name": ..., "arguments": {...}}, ...]`."""

from __future__ import annotations

from ..format import CallFormat
from ..json_calls import JsonCalls

MARKS = {"<|tool_call|>": ""}


def is_taught_by(template: str) -> bool:
    """By its mark."""
    return "<|tool_call|>" in template


EXPORT = CallFormat(JsonCalls(MARKS).read, tuple(MARKS), is_taught_by)
