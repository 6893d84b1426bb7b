"""Answers as JSON. A long one is written in pieces beside the event loop, as no other thread runs during one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Response

from .aside import Aside
from .sse import event, frame

SMALL = 2048  # tokens, each as often as it is told with scores: some milliseconds of work, at a microsecond a score


@dataclass(frozen=True, slots=True)
class OneByOne:
    """A list of an answer whose items are made as they are written: all at once, a long prompt's would fill memory."""

    make: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.make()


async def answered(
    aside: Aside, make: Callable[[], Mapping[str, Any]], headers: Mapping[str, str], *, size: int
) -> Response:
    """The response that says what `make` makes; `size`: how many tokens and scores it may tell of."""
    said = _dumps(make()).encode() if size <= SMALL else await aside.work(0, lambda: in_pieces(make()))
    return Response(said, media_type="application/json", headers=dict(headers))


async def framed(aside: Aside, make: Callable[[], Mapping[str, Any]], *, size: int) -> bytes:
    """The event of a stream that says it."""
    return event(make()) if size <= SMALL else frame(await aside.work(0, lambda: in_pieces(make())))


def in_pieces(value: object) -> bytes:
    """`value` as JSON, written in as many calls as it has parts."""
    return "".join(_pieces(value)).encode()


def _pieces(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _joined("{}", (_named(name, item) for name, item in value.items()))
    elif isinstance(value, OneByOne):
        yield from _joined("[]", ([_dumps(item)] for item in value))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from _joined("[]", map(_pieces, value))
    else:
        yield _dumps(value)


def _named(name: str, value: object) -> Iterator[str]:
    yield f"{_dumps(name)}:"
    yield from _pieces(value)


def _joined(brackets: str, parts: Iterator[Any]) -> Iterator[str]:
    yield brackets[0]
    for at, part in enumerate(parts):
        if at:
            yield ","
        yield from part
    yield brackets[1]


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=list)
