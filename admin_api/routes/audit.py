"""/admin/v1/audit: every change that was made, and whether the record of it is whole. For keys with the scope admin."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict
from sqlalchemy import select
from sqlalchemy.orm import Session

from ..audit import Kind
from ..chain import verify
from ..db import Database
from ..guard import PREFIX, Door, OperatorDep, SeenDep
from ..pages import ListView, PageDep
from ..tables import AuditLine

Text = Annotated[str | None, Query(max_length=256)]
Moment = Annotated[int | None, Query(ge=0, le=1 << 53, description="seconds since 1970")]
Cursor = Annotated[int | None, Query(ge=0, le=(1 << 31) - 1)]


class AuditView(BaseModel):
    """One change: whose, by whom, from where, of what, and what it was before and after."""

    model_config = ConfigDict(from_attributes=True)

    object: Literal["audit.line"] = "audit.line"
    id: int
    at: int
    tenant: str
    actor: str
    origin: str
    kind: str
    subject: str
    action: str
    revision: int | None
    digest: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    hash: str


class AuditList(ListView):
    """Lines of the audit."""

    data: list[AuditView]


class VerificationView(BaseModel):
    """What a walk over the audit found. `head` is the hash of its last sound line: keep it elsewhere, and ask later
    with `expect` whether it is still among the lines."""

    object: Literal["audit.verification"] = "audit.verification"
    sound: bool
    reason: str | None
    lines: int
    head: str
    broken: int | None  # the id of the first wrong line


class AuditRoutes:
    """The routes, as `router`."""

    def __init__(self, door: Door, database: Database) -> None:
        self._database = database
        self.router = APIRouter(prefix=PREFIX, tags=["audit"], dependencies=door)
        self.router.add_api_route("/audit", self.list, methods=["GET"])
        self.router.add_api_route("/audit/verify", self.verify, methods=["GET"])

    async def list(
        self,
        _caller: OperatorDep,
        seen: SeenDep,
        page: PageDep,
        actor: Text = None,
        kind: Kind | None = None,
        subject: Text = None,
        action: Text = None,
        since: Moment = None,
        until: Moment = None,
        order: Literal["newest", "oldest"] = "newest",
    ) -> AuditList:
        """The lines that have all that is asked for; the newest first."""
        asked = {"tenant": seen, "actor": actor, "kind": kind, "subject": subject, "action": action}
        query = select(AuditLine).filter_by(**{name: value for name, value in asked.items() if value is not None})
        if since is not None:
            query = query.where(AuditLine.at >= since)
        if until is not None:
            query = query.where(AuditLine.at < until)
        if page.number is not None:
            query = query.where(AuditLine.id < page.number if order == "newest" else AuditLine.id > page.number)
        query = query.order_by(AuditLine.id.desc() if order == "newest" else AuditLine.id).limit(page.limit + 1)

        def work(session: Session) -> AuditList:
            rows = session.scalars(query).all()
            data = [AuditView.model_validate(row) for row in rows[: page.limit]]
            return AuditList(data=data, next_cursor=str(data[-1].id) if len(rows) > page.limit else None)

        return await self._database.look(work)

    async def verify(
        self, _caller: OperatorDep, expect: Annotated[str | None, Query(pattern="^[0-9a-f]{64}$")] = None
    ) -> VerificationView:
        """Walk over the whole chain of hashes."""
        walk = await asyncio.to_thread(verify, self._database, expect)
        return VerificationView(
            sound=walk.reason is None, reason=walk.reason, lines=walk.lines, head=walk.head, broken=walk.broken
        )
