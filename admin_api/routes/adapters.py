"""/admin/v1/adapters, but for new ones (incoming.py). A name may hold one slash, so paths end in `{name:path}`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy.orm import Session

from ...core.body import describes
from ...core.errors import InvalidRequest
from .. import repo
from ..adapters import AdapterService
from ..bodies import reads
from ..etags import IfMatch, tagged
from ..guard import PREFIX, CallerDep, Door, SeenDep
from ..names import MAX_QUERY
from ..pages import PageDep
from ..replies import Answer, OnceDep
from ..repo import Wanted
from ..schemas import AdapterChange, AdapterList, AdapterView, Deleted, RevisionList, RevisionView
from ..tables import Adapter, Revision, State

ONE = "/adapters/{name:path}"


class AdapterRoutes:
    """The routes, as `router`."""

    def __init__(self, door: Door, service: AdapterService) -> None:
        self._service = service
        self.router = APIRouter(prefix=PREFIX, tags=["adapters"], dependencies=door)
        add = self.router.add_api_route
        add("/adapters", self.list, methods=["GET"], response_model=AdapterList)
        add(ONE + "/revisions", self.revisions, methods=["GET"])
        add(ONE + "/revisions/{number}", self.revision, methods=["GET"])
        add(ONE + "/revisions/{number}/retire", self.retire, methods=["POST"], response_model=RevisionView)
        add(ONE + "/activate", self.activate, methods=["POST"], response_model=AdapterView)
        add(ONE + "/recheck", self.recheck, methods=["POST"], status_code=202, response_model=AdapterView)
        add(ONE + "/deactivate", self.deactivate, methods=["POST"], response_model=AdapterView)
        add(ONE, self.get, methods=["GET"])
        add(ONE, self.change, methods=["PATCH"], response_model=AdapterView, openapi_extra=describes(AdapterChange))
        add(ONE, self.delete, methods=["DELETE"], response_model=Deleted)

    async def list(
        self,
        caller: CallerDep,
        seen: SeenDep,
        page: PageDep,
        query: Annotated[str | None, Query(max_length=MAX_QUERY)] = None,
        state: State | None = None,
    ) -> Response:
        """Adapters with their revisions: those with `query` in name or description, with a revision in `state`."""
        wanted = Wanted(tenant=seen, query=query, state=state, after=page.cursor, limit=page.limit)

        return Answer(await self._service.page(caller, wanted)).response

    async def get(self, name: str, caller: CallerDep, response: Response) -> AdapterView:
        """One adapter."""
        return tagged(response, self._view(await self._service.get(caller, name)))

    async def revisions(self, name: str, caller: CallerDep) -> RevisionList:
        """All revisions of an adapter, oldest first."""
        adapter = await self._service.get(caller, name)
        return RevisionList(data=[self._told(revision) for revision in adapter.revisions])

    async def revision(self, name: str, number: str, caller: CallerDep) -> RevisionView:
        """One revision, with its state and the report of the gate. When it is told to be READY, requests see it."""
        return self._told(await self._service.wait(caller, name, _number(number), 0))

    async def retire(self, name: str, number: str, caller: CallerDep, once: OnceDep) -> Response:
        """Make a revision history. It resolves no more, and its bytes go; one that an alias names is refused."""

        def work(session: Session) -> Answer:
            return Answer.of(self._told(repo.retire(session, caller, name, _number(number))))

        return (await self._service.change(caller, name, once.doing(work))).response

    async def activate(
        self, name: str, request: Request, caller: CallerDep, once: OnceDep, match: IfMatch = None
    ) -> Response:
        """Let the bare name mean the newest revision that is ready, or `?revision=N`."""
        given = request.query_params.get("revision")
        number = None if given is None else _number(given)

        def work(session: Session) -> Answer:
            return self._answer(repo.activate(session, caller, name, number, match=match))

        return (await self._service.change(caller, name, once.doing(work))).response

    async def deactivate(self, name: str, caller: CallerDep, once: OnceDep, match: IfMatch = None) -> Response:
        """Let the bare name mean nothing; answers when its last running request has ended."""

        def work(session: Session) -> Answer:
            return self._answer(repo.deactivate(session, caller, name, match=match))

        answer = await self._service.change(caller, name, once.doing(work))
        await self._service.let_go(caller, name)
        return answer.response

    async def recheck(self, name: str, caller: CallerDep, once: OnceDep) -> Response:
        """Send its revisions that were checked on another base than this server's through the gate again."""

        def work(session: Session) -> Answer:
            found = repo.recheck(session, caller, name, self._service.catalog.judge)
            return Answer.of(self._view(found), 202)

        answer = await self._service.change(caller, name, once.doing(work))
        self._service.uploads.set()
        return answer.response

    async def change(
        self,
        name: str,
        caller: CallerDep,
        once: OnceDep,
        body: Annotated[AdapterChange, Depends(reads(AdapterChange))],
        match: IfMatch = None,
    ) -> Response:
        """Another description, or whether all tenants may use it."""
        said = body.model_dump(exclude_unset=True)

        def work(session: Session) -> Answer:
            return self._answer(repo.describe(session, caller, name, said, match=match))

        doing = once.doing(work, body.model_dump_json(exclude_unset=True))
        return (await self._service.change(caller, name, doing)).response

    async def delete(self, name: str, caller: CallerDep, once: OnceDep, match: IfMatch = None) -> Response:
        """Stop serving it, and forget its revisions; answers when its last running request has ended."""

        def work(session: Session) -> Answer:
            repo.delete(session, caller, name, match=match)
            return Answer.of(Deleted(name=name))

        answer = await self._service.change(caller, name, once.doing(work))
        await self._service.let_go(caller, name)
        return answer.response

    def _answer(self, adapter: Adapter) -> Answer:
        return Answer.of(self._view(adapter))

    def _told(self, revision: Revision) -> RevisionView:
        return RevisionView.of(revision, self._service.catalog)

    def _view(self, adapter: Adapter) -> AdapterView:
        return AdapterView.of(adapter, self._service.catalog)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidRequest(f"revision is {text[:20]!r}; it must be a number", param="revision")
    return int(text)
