"""Regular expressions that strangers wrote, in PEFT's places and dialect: checked before use, matched within bounds.

`re` says what is an expression; `regex` matches it, because a match can be bounded in time there and lets other threads
run. An expression that backtracks without end would otherwise stop the whole server.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

import regex

from ..core.errors import InvalidAdapter

MAX_LENGTH = 1 << 16  # characters; an alternation of every module of an 80-layer base has 25 thousand
MAX_WEIGHT = 2_000_000  # length times all repetitions; compiling unrolls them, 5 million a second and 150 bytes each
MATCH_SECONDS = 2.0  # of one match, in processor time of the whole process; sound ones take microseconds
WHOLE = "{}"
LAST_PARTS = r"(.*\.)?({})$"  # PEFT's get_pattern_key
LAYER = r"(?:^|.*?\.){}\.(?P<at>\d+)\."  # PEFT's layers_pattern
FIRST_NUMBER = r".*?\.[^.]*\.(?P<at>\d+)\."  # the first numbered segment of a module path


def problem(pattern: str, place: str = WHOLE) -> str | None:
    """Why `pattern` is no expression that may stand in `place`."""
    if len(pattern) > MAX_LENGTH:
        return f"is longer than {MAX_LENGTH} characters"
    if (weight := weight_of(pattern)) > MAX_WEIGHT:
        return f"repeats too much: its length times its repetitions is {weight:g}, over {MAX_WEIGHT}"
    try:
        re.compile(pattern)
        re.compile(place.replace("{}", pattern))
        _compiled(place.replace("{}", pattern))
    except (re.error, regex.error) as error:
        return f"is not a regular expression: {error}"
    except (RecursionError, OverflowError, MemoryError):
        return "is not a regular expression: it is nested too deep"
    return None


def weight_of(pattern: str) -> float:
    """How large `pattern` is at most when its `{m,n}` are written out: each counts as within all others, as whoever
    reads nesting can be led astray by comments and classes."""
    braces = " ".join(re.findall(r"\{[^}]*", pattern))
    return math.prod((float(number) for number in re.findall(r"[1-9]\d*", braces)), start=float(len(pattern)))


def is_whole(pattern: str, path: str) -> bool:
    """Whether all of `path` matches."""
    return _match(pattern, path, whole=True) is not None


def is_last(pattern: str, path: str) -> bool:
    """Whether the last parts of `path` match, as the keys of rank_pattern do."""
    return _match(LAST_PARTS.replace("{}", pattern), path) is not None


def layer_of(patterns: tuple[str, ...], path: str) -> int | None:
    """The number of the layer that `path` is in; `patterns` name what stands before it (none: anything may)."""
    tried = [LAYER.replace("{}", pattern) for pattern in patterns] or [FIRST_NUMBER]
    found = next((match for pattern in tried if (match := _match(pattern, path))), None)
    return None if found is None else int(found["at"])


def _match(pattern: str, path: str, *, whole: bool = False) -> Any:
    compiled = _compiled(pattern)
    try:
        return (compiled.fullmatch if whole else compiled.match)(path, timeout=MATCH_SECONDS, concurrent=True)
    except (TimeoutError, MemoryError):
        told = f"adapter_config.json: the expression {pattern[:80]!r} takes too long to match {path}"
        raise InvalidAdapter(told, problems=[told]) from None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Any:
    return regex.compile(pattern, regex.VERSION0)
