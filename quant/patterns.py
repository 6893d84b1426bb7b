"""Regular expressions in a checkpoint's config, which strangers wrote: checked when read, matched within bounds.

`re` says what is an expression; `regex` matches it, because a match can be bounded in time there. An expression that
backtracks without end would otherwise stop a start for ever.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import regex

from ..core.errors import Unsupported

MAX_LENGTH = 1 << 16  # characters
MATCH_SECONDS = 2.0  # of one match, in processor time of the whole process; sound ones take microseconds


def begins(pattern: str, name: str, field: str) -> bool:
    """Whether a module path matches from its start on, as `re.match` has it.

    Raises Unsupported, naming the config's `field`, for what is no expression or takes too long.
    """
    compiled = _compiled(pattern, field)
    try:
        return compiled.match(name, timeout=MATCH_SECONDS, concurrent=True) is not None
    except (TimeoutError, MemoryError):
        raise Unsupported(f"{field}: {_short(pattern)} takes too long to match {name}", param="model") from None


@lru_cache(maxsize=4096)
def _compiled(pattern: str, field: str) -> Any:
    if len(pattern) > MAX_LENGTH:
        raise Unsupported(f"{field}: an expression longer than {MAX_LENGTH} characters", param="model")
    try:
        re.compile(pattern)
        return regex.compile(pattern, regex.VERSION0)
    except (re.error, regex.error) as error:
        raise Unsupported(f"{field}: {_short(pattern)} is not a regular expression: {error}", param="model") from error
    except (RecursionError, OverflowError, MemoryError):
        raise Unsupported(f"{field}: {_short(pattern)} is nested too deep", param="model") from None


def _short(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 80 else f"{pattern[:80]}...")
