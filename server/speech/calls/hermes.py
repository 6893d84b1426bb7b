"""Hermes, Qwen 2.5 and 3 and many others: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

from ..format import CallFormat, Held
from ..held import one_call
from ..json_calls import JsonCalls

MARKS = {"<tool_call>": "</tool_call>"}


def is_taught_by(template: str) -> bool:
    """Others put something else between the same marks."""
    return "<tool_call>" in template and not any(other in template for other in ("<function=", "<arg_key>"))


EXPORT = CallFormat(JsonCalls(MARKS).read, (*MARKS, *MARKS.values()), is_taught_by, held=Held(tuple(MARKS), one_call))
