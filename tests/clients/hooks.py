"""What schemathesis is told of this server (SCHEMATHESIS_HOOKS): names that mean something, and few fields at once.

Generated bodies have a name that no model has, and a dozen fields of which one is at odds with another: each would be
told so, and hardly one would be answered. So three in four name a model here, and three in four lose all but two of
the fields that they need not have. Which ones goes by the body, so that a failure comes again.
"""

from __future__ import annotations

import zlib
from typing import Any

import schemathesis

NAMES = ("tiny", "red", "tiny", None)
NEEDED = {"model", "messages", "prompt", "input", "tokens", "max_tokens"}
KEPT = 2
VOCABULARY = 512
STREAMED = 48  # bits of the dice: a quarter


@schemathesis.hook
def before_call(_context: Any, case: schemathesis.Case, _kwargs: dict[str, Any]) -> None:
    """Every request passes here."""
    case.body = _sent(case.body)


def _sent(body: Any) -> Any:
    """The body that is sent instead of `body`."""
    if not isinstance(body, dict):
        return body
    dice = zlib.crc32(repr(body).encode(errors="replace"))
    if dice % 4 and NEEDED & set(body):
        spare = sorted(set(body) - NEEDED)
        kept = {spare[(dice >> shift) % len(spare)] for shift in range(KEPT)} if spare else set()
        body = {name: value for name, value in body.items() if name in NEEDED | kept}
        if "stream_options" in body or ("model" in body and dice & STREAMED == 0):
            body["stream"] = True
    if isinstance(body.get("model"), str) and (name := NAMES[(dice >> 2) % len(NAMES)]):
        return {**{field: _sensible(value) for field, value in body.items()}, "model": name}
    return body


def _sensible(value: Any) -> Any:
    """Tokens that there are, in lists of them; words where a message has none; 1 for 1.0, which is whole by JSON
    Schema alone."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        items = [_sensible(item) for item in value]
        return [item % VOCABULARY if type(item) is int else item for item in items]
    if isinstance(value, dict) and "role" in value:
        return {**value, "content": value.get("content") or "seeds"}
    return value
