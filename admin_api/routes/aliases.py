"""/admin/v1/adapters/{name}/aliases: where a name leads. A name may hold one slash, so paths end in `{name:path}`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from sqlalchemy.orm import Session

from ...core.body import describes
from ...core.callers import Caller
from .. import repo
from ..adapters import AdapterService
from ..bodies import reads
from ..canaries import Canaries
from ..etags import IfMatch, tagged
from ..guard import PREFIX, CallerDep, Door
from ..names import check_alias
from ..replies import Answer, OnceDep
from ..schemas import AliasChange, AliasList, AliasView, Deleted, Seen, SeenAlias
from ..shadows import Shadows

ALL = "/adapters/{name:path}/aliases"
ONE = ALL + "/{alias}"


class AliasRoutes:
    """The routes, as `router`."""

    def __init__(self, door: Door, service: AdapterService, shadows: Shadows, canaries: Canaries) -> None:
        self._service = service
        self._shadows = shadows
        self._canaries = canaries
        self.router = APIRouter(prefix=PREFIX, tags=["aliases"], dependencies=door)
        add = self.router.add_api_route
        put = describes(AliasChange)
        add(ONE, self.put, methods=["PUT"], response_model=AliasView, openapi_extra=put)
        add(ONE + "/rollback", self.rollback, methods=["POST"], response_model=AliasView)
        add(ONE, self.delete, methods=["DELETE"], response_model=Deleted)
        add(ONE, self.get, methods=["GET"])
        add(ALL, self.list, methods=["GET"])

    async def put(
        self,
        name: str,
        alias: str,
        caller: CallerDep,
        once: OnceDep,
        body: Annotated[AliasChange, Depends(reads(AliasChange))],
        match: IfMatch = None,
    ) -> Response:
        """Make an alias or move it, in effect with the answer: requests that run keep the revision they began with."""
        check_alias(alias)
        said = body.said()

        def work(session: Session) -> Answer:
            return Answer.of(AliasView.of(repo.set_alias(session, caller, name, alias, said, match=match)))

        doing = once.doing(work, body.model_dump_json(exclude_unset=True))
        return (await self._service.change(caller, name, doing)).response

    async def rollback(
        self, name: str, alias: str, caller: CallerDep, once: OnceDep, match: IfMatch = None
    ) -> Response:
        """Take the last move of an alias back."""

        def work(session: Session) -> Answer:
            return Answer.of(AliasView.of(repo.rollback(session, caller, name, alias, match=match)))

        return (await self._service.change(caller, name, once.doing(work))).response

    async def delete(self, name: str, alias: str, caller: CallerDep, once: OnceDep, match: IfMatch = None) -> Response:
        """Let `name@alias` mean nothing."""

        def work(session: Session) -> Answer:
            repo.remove_alias(session, caller, name, alias, match=match)
            return Answer.of(Deleted(object="alias", name=f"{name}@{alias}"))

        return (await self._service.change(caller, name, once.doing(work))).response

    async def get(self, name: str, alias: str, caller: CallerDep, response: Response) -> SeenAlias:
        """One alias, and what this server has seen of its shadow and of the revisions that are watched."""
        view = await self._service.transact(lambda session: AliasView.of(repo.alias(session, caller, name, alias)))
        return tagged(response, SeenAlias(**view.model_dump(), seen=self._seen(caller, view)))

    async def list(self, name: str, caller: CallerDep) -> AliasList:
        """All aliases of an adapter."""
        adapter = await self._service.get(caller, name)
        return AliasList(data=[AliasView.of(alias) for alias in adapter.aliases])

    def _seen(self, caller: Caller, view: AliasView) -> Seen:
        tenant, name, alias = caller.tenant, view.adapter, view.name
        watch, listed = self._service.watch(tenant, name, alias), self._service.catalog.seen(tenant, name)
        each = (
            {number: self._canaries.finding(tenant, name, alias, number) for number in watch.revisions} if watch else {}
        )
        ref = listed.revisions.get(view.shadow.revision) if listed and view.shadow else None
        return Seen(
            watched={str(number): asdict(finding) for number, finding in each.items() if finding},
            shadow=(report.said() if ref and (report := self._shadows.report(ref)) else None),
        )
