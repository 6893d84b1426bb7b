"""The lines of a file in the database, and whether all of them are requests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...core.batch_lines import BadLine, Line
from ..db import Database
from . import files

MOST_LINES = 50_000
MOST_ERRORS = 100  # that are listed
LONGEST_LINE = 20 << 20  # bytes: more than the body of any request

Raw = tuple[int, bytes]  # number from 1, and the line


@dataclass(slots=True)
class Checked:
    """What a look at all lines has found."""

    total: int = 0
    models: set[str | None] = field(default_factory=set)
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def model(self) -> str | None:
        """The one model that all lines name."""
        return next(iter(self.models)) if len(self.models) == 1 else None

    def fail(self, error: BadLine) -> None:
        """One more."""
        self.errors.append(error_of(error.code, error.message, line=error.number, param=error.param))


def error_of(code: str, message: str, *, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    """An entry of a batch's `errors`."""
    return {"code": code, "line": line, "message": message, "param": param}


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


async def check(lines: AsyncGenerator[Raw, None], url: str) -> Checked:
    """Look at every line, up to the hundredth fault. Each custom_id may stand once."""
    found, seen = Checked(), dict[str, int]()
    try:
        async for number, raw in lines:
            found.total += 1
            if found.total > MOST_LINES:
                raise BadLine(number, f"a batch has at most {MOST_LINES} lines", code="too_many_lines")
            _look(found, seen, raw, number, [url])
            if len(found.errors) >= MOST_ERRORS:
                break
    except BadLine as error:
        found.fail(error)
    if not found.total:
        found.errors.append(error_of("empty_file", "the file has no lines"))
    return found


def _look(found: Checked, seen: dict[str, int], raw: bytes, number: int, urls: Collection[str]) -> None:
    try:
        line = Line.of(raw, number, urls)
        found.models.add(line.model)
        if (first := seen.setdefault(line.custom_id, number)) != number:
            message = f"custom_id: {line.custom_id[:100]!r} is that of line {first} too"
            raise BadLine(number, message, code="duplicate_custom_id", param="custom_id")
    except BadLine as error:
        found.fail(error)
