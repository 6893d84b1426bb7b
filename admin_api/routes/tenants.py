"""/admin/v1/tenants: who owns adapters and keys, and how much they may use. For keys with the scope admin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from ...core.body import ExactBody, describes
from ...core.callers import Caller
from ...core.errors import NotFound
from .. import tenants
from ..adapters import AdapterService
from ..bodies import reads
from ..db import Database
from ..etags import IfMatch, etag, tagged
from ..guard import PREFIX, Door, OperatorDep, SeenDep
from ..holdings import Kept, kept
from ..keyring import Keyring
from ..pages import ListView, PageDep
from ..replies import Answer, Once, OnceDep
from ..schemas import Deleted
from ..tables import Tenant

Rate = Annotated[int | None, Field(ge=1, le=(1 << 31) - 1)]
Amount = Annotated[int | None, Field(ge=0, le=(1 << 31) - 1)]
Size = Annotated[int | None, Field(ge=0, le=(1 << 63) - 1)]


class Rates(ExactBody):
    """How much may be asked for; null is no limit."""

    requests_per_minute: Rate = None
    tokens_per_minute: Rate = None
    concurrent_requests: Rate = None


class TenantChange(Rates):
    """What can be changed of a tenant; what is left out stays as it is."""

    max_adapters: Amount = None
    max_adapter_bytes: Size = None


class NewTenant(TenantChange):
    """POST /tenants."""

    name: str


class TenantView(BaseModel):
    """A tenant, its limits, and what it keeps."""

    object: Literal["tenant"] = "tenant"
    name: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    max_adapters: int | None
    max_adapter_bytes: int | None
    adapters: int
    adapter_bytes: int
    created: int
    etag: str

    @classmethod
    def all_of(cls, session: Session, rows: Sequence[Tenant]) -> list[TenantView]:
        """The views of rows."""
        holds = kept(session, [row.id for row in rows])
        return [cls._of(row, holds[row.id]) for row in rows]

    @classmethod
    def of(cls, session: Session, row: Tenant) -> TenantView:
        """The view of a row."""
        return cls.all_of(session, [row])[0]

    @classmethod
    def _of(cls, row: Tenant, holds: Kept) -> TenantView:
        limits: dict[str, Any] = tenants.limits_of(row)
        size, tag = holds.size, etag(row.version)
        return cls(name=row.name, **limits, adapters=holds.adapters, adapter_bytes=size, created=row.created, etag=tag)


class TenantList(ListView):
    """Tenants by name."""

    data: list[TenantView]


class TenantRoutes:
    """The routes, as `router`."""

    def __init__(self, door: Door, database: Database, keyring: Keyring, service: AdapterService) -> None:
        self._service = service
        self._database = database
        self._keyring = keyring
        self.router = APIRouter(prefix=PREFIX, tags=["tenants"], dependencies=door)
        add = self.router.add_api_route
        new, change = describes(NewTenant), describes(TenantChange)
        add("/tenants", self.create, methods=["POST"], status_code=201, response_model=TenantView, openapi_extra=new)
        add("/tenants", self.list, methods=["GET"])
        add("/tenants/{name}", self.get, methods=["GET"])
        add("/tenants/{name}", self.change, methods=["PATCH"], response_model=TenantView, openapi_extra=change)
        add("/tenants/{name}", self.delete, methods=["DELETE"], response_model=Deleted)

    async def create(
        self, caller: OperatorDep, once: OnceDep, body: Annotated[NewTenant, Depends(reads(NewTenant))]
    ) -> Response:
        """A new tenant."""
        limits = body.model_dump(exclude={"name"})

        def work(session: Session) -> Answer:
            return Answer.of(TenantView.of(session, tenants.create(session, caller, body.name, limits)), 201)

        return (await self._keyring.change(once.doing(work, body.model_dump_json()))).response

    async def list(self, _caller: OperatorDep, seen: SeenDep, page: PageDep) -> TenantList:
        """All tenants, by name."""

        def work(session: Session) -> TenantList:
            rows = tenants.tenants(session, name=seen, after=page.cursor, limit=page.limit + 1)
            data = TenantView.all_of(session, rows[: page.limit])
            return TenantList(data=data, next_cursor=data[-1].name if len(rows) > page.limit else None)

        return await self._database.run(work)

    async def get(self, name: str, _caller: OperatorDep, response: Response) -> TenantView:
        """One tenant."""
        view = await self._database.run(lambda session: TenantView.of(session, tenants.tenant(session, name)))
        return tagged(response, view)

    async def change(
        self,
        name: str,
        caller: OperatorDep,
        once: OnceDep,
        body: Annotated[TenantChange, Depends(reads(TenantChange))],
        match: IfMatch = None,
    ) -> Response:
        """Other limits: those that are sent; null lifts one."""
        limits = body.model_dump(exclude_unset=True)

        def work(session: Session) -> Answer:
            return Answer.of(TenantView.of(session, tenants.change(session, caller, name, limits, match)))

        doing = once.doing(work, body.model_dump_json(exclude_unset=True))
        return (await self._keyring.change(doing)).response

    async def delete(
        self,
        name: str,
        caller: OperatorDep,
        once: OnceDep,
        match: IfMatch = None,
        adapters: Annotated[Literal["keep", "delete"], Query(description="what becomes of its adapters")] = "keep",
    ) -> Response:
        """Forget a tenant and its keys, which open nothing from then on. One that owns adapters is refused, unless
        `adapters=delete`; then it answers when their last running request has ended."""

        def work(session: Session) -> Answer:
            tenants.delete(session, caller, name, match)
            return Answer.of(Deleted(object="tenant", name=name))

        if adapters == "delete":
            await self._empty(name, caller, once, match)
        return (await self._keyring.change(once.doing(work))).response

    async def _empty(self, name: str, caller: Caller, once: Once, match: str | None) -> None:
        """Delete all that a tenant owns, which must be deletable itself."""

        def work(session: Session) -> Sequence[str]:
            if once.kept(session) is not None:
                return ()
            return tenants.adapters_of(session, tenants.deletable(session, name, match))

        owned = await self._database.run(work)
        there = self._keyring.looking_back(caller, name)
        await asyncio.gather(*(self._forget(there, adapter) for adapter in owned))

    async def _forget(self, caller: Caller, adapter: str) -> None:
        with suppress(NotFound):  # somebody else has deleted it meanwhile
            await self._service.delete(caller, adapter)
