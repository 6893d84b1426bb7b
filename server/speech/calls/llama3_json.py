"""Llama 3.1 to 3.3: the whole answer is `{"name": ..., "parameters": {...}}`, perhaps several with `;` between."""

from __future__ import annotations

from functools import partial

from ..format import CallFormat, Held
from ..held import one_call
from ..json_calls import JsonCalls

MARKS = {"<|python_tag|>": ""}
HELD = Held(tuple(MARKS), partial(one_call, key="parameters"), everywhere=False)  # an answer in JSON begins so too


def is_taught_by(template: str) -> bool:
    """By its words, and the role of what tools answer."""
    return '"parameters"' in template and "ipython" in template


EXPORT = CallFormat(JsonCalls(MARKS, bare=True).read, tuple(MARKS), is_taught_by, held=HELD)
