"""A request of another shape runs as a chat request: what is wrong with that one is said in the words of the first."""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import reduce
from typing import TypeVar

from ..core.errors import ArilError

T = TypeVar("T")
# A field of chat, or the beginning of its path -> what the caller calls it; [] is the same place of a list in both.
Names = Mapping[str, str]


@contextmanager
def speaking(names: Names) -> Iterator[None]:
    """Errors that are raised within name the caller's fields."""
    try:
        yield
    except ArilError as error:
        raise renamed(error, names) from error


async def spoken(stream: AsyncGenerator[T, None], names: Names) -> AsyncGenerator[T, None]:
    """`stream`, whose errors name the caller's fields."""
    with speaking(names):
        async with aclosing(stream):
            async for item in stream:
                yield item


def renamed(error: ArilError, names: Names) -> ArilError:
    """`error` with the caller's names of fields, in its param and its message."""
    if error.param is None or (param := _path(error.param, names)) == error.param:
        return error
    told = copy.copy(error)
    told.param = param
    told.message = _words(error.message, error.param, param, names)
    return told


def _path(param: str, names: Names) -> str:
    """The caller's name for a path: the longest beginning that has one is replaced."""
    for name in sorted(names, key=len, reverse=True):
        if found := re.match(re.escape(name).replace(r"\[\]", r"(\[\d+\])") + r"(?=$|[.\[])", param):
            return reduce(_filled, found.groups(), names[name]) + param[found.end() :]
    return param


def _filled(name: str, place: str) -> str:
    return name.replace("[]", place, 1)


def _words(message: str, old: str, new: str, names: Names) -> str:
    """Each field of `names` as the caller calls it; the path itself first, of which it may be a part."""
    known = sorted({old, *names}, key=len, reverse=True)
    pattern = r"(?<![\w.])(" + "|".join(map(re.escape, known)) + r")(?!\w)"
    return re.sub(pattern, lambda found: new if found[0] == old else names[found[0]], message)
