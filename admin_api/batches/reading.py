"""The lines of a file in the database, and whether all of them are requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import TypeVar

from ...core.batch_lines import BadLine, Checked
from ..db import Database
from . import files

MOST_LINES = 50_000
MOST_ERRORS = 100  # that are listed
LONGEST_LINE = 20 << 20  # bytes: more than the body of any request

T = TypeVar("T")
LARGE = 1 << 15  # bytes that take some milliseconds to read

Raw = tuple[int, bytes]  # number from 1, and the line


async def raw_lines(database: Database, file_id: str) -> AsyncGenerator[Raw, None]:
    """The lines that are not blank, read piece by piece. Raises BadLine for one that is longer than any request."""
    number, at, rest = 0, -1, b""
    while found := await database.run(partial(files.pieces, id=file_id, after=at, limit=1)):
        ((at, data),) = found
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            number += 1
            if line.strip():
                yield number, line
        if len(rest) > LONGEST_LINE:
            raise BadLine(number + 1, f"it is over {LONGEST_LINE} bytes", code="line_too_long")
    if rest.strip():
        yield number + 1, rest


async def read(raw: bytes, look: Callable[[], T]) -> T:
    """What `look` makes of a line; here, or beside the event loop where it is long."""
    return look() if len(raw) <= LARGE else await asyncio.to_thread(look)


async def check(lines: AsyncGenerator[Raw, None], url: str) -> Checked:
    """Look at every line, up to the hundredth fault."""
    found = Checked()
    try:
        async for number, raw in lines:
            await read(raw, partial(found.look, raw, number, [url]))
            if found.total > MOST_LINES:
                raise BadLine(number, f"a batch has at most {MOST_LINES} lines", code="too_many_lines")
            if len(found.errors) >= MOST_ERRORS:
                break
    except BadLine as error:
        found.errors.append(error)
    found.close()
    return found
