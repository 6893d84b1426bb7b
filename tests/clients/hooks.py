"""What schemathesis is told of this server (SCHEMATHESIS_HOOKS): names that mean something, answers that are short.

A generated name of a model is no model's, and would end every request with the same 404; three in four name one here.
"""

from __future__ import annotations

from typing import Any

import schemathesis

NAMES = ("tiny", "red", "tiny", None)


@schemathesis.hook
def map_body(_context: Any, body: Any) -> Any:
    """Which of the names it is goes by the body, so that a failure comes again."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        name = NAMES[len(repr(body)) % len(NAMES)]
        return body if name is None else {**body, "model": name}
    return body
