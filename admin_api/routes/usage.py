"""/admin/v1/usage: what was used, by day, key and revision or added up over some of these; JSON or CSV, as a stream."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import date
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from ...core.callers import Caller
from ...core.errors import InvalidRequest
from .. import usage
from ..books import Books
from ..db import Database
from ..guard import PREFIX, CallerDep, Door, SeenDep
from ..usage import COUNTS, GROUPS, Question

LINES_AT_ONCE = 1000
Rows = list[dict[str, Any]]
CSV = "text/csv"


class UsageLine(BaseModel):
    """What was used by whom; only the groups that were asked for are there."""

    day: str | None = None
    tenant: str | None = None
    key: str | None = None
    model: str | None = None
    revision: int | None = None
    requests: int
    errors: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsageList(BaseModel):
    """The answer in JSON."""

    object: Literal["list"] = "list"
    group_by: list[str]
    data: list[UsageLine]


class UsageRoutes:
    """The routes, as `router`."""

    def __init__(self, door: Door, database: Database, books: Books, base: str) -> None:
        self._database = database
        self._books = books
        self._base = base
        self.router = APIRouter(prefix=PREFIX, tags=["usage"], dependencies=door)
        shown: dict[int | str, dict[str, Any]] = {200: {"model": UsageList, "content": {CSV: {}}}}
        self.router.add_api_route("/usage", self.read, methods=["GET"], response_class=Response, responses=shown)

    async def read(
        self,
        caller: CallerDep,
        seen: SeenDep,
        first: Annotated[str | None, Query(alias="from", description="the first day, as 2026-11-30, in UTC")] = None,
        last: Annotated[str | None, Query(alias="to", description="the last day")] = None,
        key: Annotated[str | None, Query(max_length=64)] = None,
        model: Annotated[str | None, Query(max_length=128)] = None,
        group_by: Annotated[str, Query(description=f"some of {', '.join(GROUPS)}, with commas")] = ",".join(GROUPS),
        format: Annotated[Literal["json", "csv"] | None, Query()] = None,
        accept: Annotated[str, Header()] = "",
    ) -> Response:
        """Usage of the caller's tenant; of all tenants, or of `?tenant=`, for keys with the scope admin."""
        where = {"tenant": seen, "key": key, "model": model}
        asked = Question(
            groups=_groups(group_by),
            first=_day("from", first),
            last=_day("to", last),
            where={name: value for name, value in where.items() if value is not None},
            models=self._models(caller),
        )
        await self._books.flush()
        pages = self._pages(asked)
        begun = await anext(pages)  # what fails does so before the answer begins
        if format == "csv" or (format is None and CSV in accept):
            headers = {"Content-Disposition": 'attachment; filename="usage.csv"'}
            return StreamingResponse(_csv(asked.groups, begun, pages), media_type=CSV, headers=headers)
        return StreamingResponse(_json(asked.groups, begun, pages), media_type="application/json")

    def _models(self, caller: Caller) -> frozenset[str] | None:
        """The models that a caller may know of."""
        return None if caller.adapters is None else caller.adapters | {self._base}

    async def _pages(self, asked: Question) -> AsyncIterator[Rows]:
        """All lines, a page for each transaction: a slow reader keeps nobody from writing."""
        rows = await self._page(asked, None)
        yield rows
        while len(rows) == LINES_AT_ONCE:
            rows = await self._page(asked, [rows[-1][name] for name in asked.groups])
            yield rows

    async def _page(self, asked: Question, after: Sequence[Any] | None) -> Rows:
        return await self._database.look(lambda session: usage.read(session, asked, after, LINES_AT_ONCE))


async def _csv(groups: Iterable[str], begun: Rows, pages: AsyncIterator[Rows]) -> AsyncIterator[str]:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*groups, *COUNTS])
    writer.writeheader()
    writer.writerows(begun)
    yield text.getvalue()
    async for rows in pages:
        text.seek(0)
        text.truncate()
        writer.writerows(rows)
        yield text.getvalue()


async def _json(groups: Iterable[str], begun: Rows, pages: AsyncIterator[Rows]) -> AsyncIterator[str]:
    yield f'{{"object": "list", "group_by": {json.dumps(list(groups))}, "data": ['
    yield ",".join(map(json.dumps, begun))
    async for rows in pages:
        yield "".join("," + json.dumps(row) for row in rows)
    yield "]}"


def _groups(text: str) -> tuple[str, ...]:
    named = [name.strip() for name in text.split(",")]
    if unknown := [name for name in named if name not in GROUPS]:
        raise InvalidRequest(f"group_by: no {unknown[0][:20]!r}; possible: {', '.join(GROUPS)}", param="group_by")
    return tuple(name for name in GROUPS if name in named)


def _day(name: str, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise InvalidRequest(f"{name}: {text[:20]!r} is no day; write it as 2026-11-30", param=name) from None
