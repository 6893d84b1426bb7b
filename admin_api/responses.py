"""Keeps responses in the database, each for its tenant, until they are old or too many. Implements server's
ResponseStore; knows no more of a response than its id, its status and its error.

A response that is still being made is held by the server that makes it, which says every few seconds that it lives.
One whose server no longer does has failed, whoever looks at it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.orm import Session

from ..core.callers import Caller
from ..core.errors import TooLarge
from .db import Database
from .server_id import new_server_id
from .tables import StoredResponse, now

Json = dict[str, Any]
LEASE = 30  # seconds
DAY = 24 * 3600
ROW_BYTES = 500  # what a row takes beside its texts
SLACK = 64  # a server looks at the sum when it has added this part of the bound
CUT = {
    "status": "failed",
    "error": {"code": "server_error", "message": "the server stopped while it made this response"},
}


class Responses:
    """The responses of all tenants; at most `max_bytes` of each, none older than `days`."""

    def __init__(self, database: Database, *, days: int, max_bytes: int) -> None:
        self._database = database
        self._days = days
        self._max_bytes = max_bytes
        self._me = new_server_id()
        self._added: dict[int, int] = {}  # bytes since the last look, by tenant

    async def keep(self, caller: Caller, response: Json, items: Sequence[Json], *, ended: bool) -> None:
        """Keep a new response with its whole input; one that has not ended is held by this server. Raises TooLarge."""

        def work(session: Session) -> int:
            size = _size(response, items)
            if size > self._max_bytes:
                bound = f"this server keeps {self._max_bytes} bytes of responses"
                raise TooLarge(f"{bound}; this one has {size}: send store: false", param="store")
            row = StoredResponse(
                id=response["id"],
                tenant_id=caller.tenant_id,
                size=size,
                held_by=None if ended else self._me,
                held_until=None if ended else now() + LEASE,
                response=response,
                input=list(items),
            )
            session.add(row)
            return size

        size = await self._database.run(work)
        await self._trim(caller.tenant_id, size, but=response["id"])

    async def find(self, caller: Caller, id: str) -> Json | None:
        """The response of that id, as it stands."""
        row = await self._database.look(lambda session: session.scalars(_of(caller, id)).one_or_none())
        if row is not None and _has_lapsed(row):
            row = await self._database.run(lambda session: _row(session, caller, id))
        return None if row is None else row.response

    async def input_of(self, caller: Caller, id: str) -> list[Json] | None:
        """All items that the response of that id was made from, oldest first."""
        row = await self._database.look(lambda session: session.scalars(_of(caller, id)).one_or_none())
        return None if row is None else row.input

    async def finish(self, caller: Caller, id: str, changes: Mapping[str, Any]) -> Json | None:
        """Change a response that is being made, for the last time; one that has ended stays as it is. Returns it as it
        stands then. Whoever makes it may be late to say that it still does: an answer that is there is kept."""

        def work(session: Session) -> Json | None:
            row = _row(session, caller, id, maker=self._me)
            if row is not None and row.held_by is not None:
                _end(row, changes)
            return None if row is None else row.response

        return await self._database.run(work)

    async def forget(self, caller: Caller, id: str) -> bool:
        """Delete the response of that id; False when there is none."""

        def work(session: Session) -> bool:
            row = _row(session, caller, id)
            if row is not None:
                session.delete(row)
            return row is not None

        return await self._database.run(work)

    async def hold(self, ids: Collection[str]) -> set[str]:
        """Say that this server still makes those; returns the ones that are still wanted."""

        def work(session: Session) -> set[str]:
            held = (StoredResponse.id.in_(ids), StoredResponse.held_by == self._me)
            session.execute(update(StoredResponse).where(*held).values(held_until=now() + LEASE))
            return set(session.scalars(select(StoredResponse.id).where(*held)))

        return await self._database.run(work)

    async def sweep(self, *, alone: bool = False) -> None:
        """Drop what is too old, and let fail what nobody makes any more: `alone`, no server makes anything yet."""

        def work(session: Session) -> None:
            session.execute(delete(StoredResponse).where(StoredResponse.created < now() - self._days * DAY))
            held = select(StoredResponse).where(StoredResponse.held_by.is_not(None))
            lapsed = held if alone else held.where(StoredResponse.held_until < now())
            for row in session.scalars(lapsed.with_for_update()):
                _end(row, CUT)

        await self._database.run(work)

    async def _trim(self, tenant_id: int, size: int, *, but: str) -> None:
        """Drop the oldest of a tenant that has too many, once in a while; not the one that has just come."""
        self._added[tenant_id] = self._added.get(tenant_id, self._max_bytes) + size
        if self._added[tenant_id] < self._max_bytes // SLACK:
            return
        self._added[tenant_id] = 0
        newest = StoredResponse.created.desc(), StoredResponse.id.desc()
        so_far = func.sum(StoredResponse.size).over(order_by=newest).label("so_far")
        sums = select(StoredResponse.id, so_far).where(StoredResponse.tenant_id == tenant_id).subquery()
        over = select(sums.c.id).where(sums.c.so_far > self._max_bytes, sums.c.id != but)
        oldest = delete(StoredResponse).where(StoredResponse.id.in_(over))
        await self._database.run(lambda session: session.execute(oldest))


def _of(caller: Caller, id: str) -> Select[StoredResponse]:
    return select(StoredResponse).where(StoredResponse.id == id, StoredResponse.tenant_id == caller.tenant_id)


def _row(session: Session, caller: Caller, id: str, *, maker: str | None = None) -> StoredResponse | None:
    """One of the caller's tenant, locked; it has failed if nobody makes it any more, which `maker` does not ask of
    itself."""
    row = session.scalars(_of(caller, id).with_for_update()).one_or_none()
    if row is not None and row.held_by != maker and _has_lapsed(row):
        _end(row, CUT)
    return row


def _has_lapsed(row: StoredResponse) -> bool:
    return row.held_until is not None and row.held_until < now()


def _end(row: StoredResponse, changes: Mapping[str, Any]) -> None:
    row.response = {**row.response, **changes}
    row.size = _size(row.response, row.input)
    row.held_by = row.held_until = None


def _size(response: Mapping[str, Any], items: Sequence[Json]) -> int:
    return ROW_BYTES + len(json.dumps(response)) + len(json.dumps(items))
