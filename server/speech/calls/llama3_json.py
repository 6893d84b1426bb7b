"""Llama 3.1 to 3.3: the whole answer is `{"name": ..., "parameters": {...}}`, perhaps several with `;` between."""

from __future__ import annotations

from ..format import CallFormat
from ..json_calls import JsonCalls

MARKS = {"<|python_tag|>": ""}


def is_taught_by(template: str) -> bool:
    """By its words, and the role of what tools answer."""
    return '"parameters"' in template and "ipython" in template


EXPORT = CallFormat(JsonCalls(MARKS, bare=True).read, tuple(MARKS), is_taught_by)
