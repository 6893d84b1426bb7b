"""POST /admin/v1/adapters: a new revision, from the files of a form or from a source that is named in JSON."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from ...core.callers import Caller
from ...core.errors import NotFound
from ..adapters import AdapterService
from ..arrivals import Arrivals
from ..arrivals.rows import Plan
from ..bodies import reads
from ..guard import PREFIX, CallerDep, Door
from ..replies import Answer, Once, OnceDep
from ..schemas import UploadView
from ..tables import Revision
from ..turns import Turns
from ..uploads import OPENAPI, Upload, received
from ..wishes import SourceOrder
from .uploads import ArrivalView

ACCEPTED = 202


class IncomingRoutes:
    """The route, as `router`."""

    def __init__(self, door: Door, service: AdapterService, arrivals: Arrivals, max_upload_bytes: int) -> None:
        self._service = service
        self._arrivals = arrivals
        self._max_bytes = max_upload_bytes
        self._turns = Turns()
        self.router = APIRouter(prefix=PREFIX, tags=["adapters"], dependencies=door)
        view = UploadView | ArrivalView
        post = self.router.post("/adapters", status_code=ACCEPTED, response_model=view, openapi_extra=OPENAPI)
        post(self.upload)

    async def upload(self, request: Request, caller: CallerDep, once: OnceDep) -> Response:
        """Keep the uploaded files as the newest revision of an adapter, to be checked and then served; or fetch them
        from the `source` of a JSON body in the background. `activate` says whether the bare name shall mean this
        revision, `wait` how many seconds to wait for the gate."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
            order = await reads(SourceOrder)(request)
            return (await self._fetch(order, caller, once)).response
        async with self._turns.of(caller.tenant), received(request, self._max_bytes) as upload:
            said = await upload.identity() if once.key is not None else ""
            if kept := await self._kept(once, said):
                return kept.response
            revision = await self._keep(upload, caller, once, said)
        answer = await self._waited(caller, revision, upload.wishes.wait)
        await self._service.transact(lambda session: once.keep(session, answer, said))
        return answer.response

    async def _keep(self, upload: Upload, caller: Caller, once: Once, said: str) -> Revision:
        return await self._service.upload(
            caller,
            upload.wishes.name,
            upload.contents,
            upload.wishes.particulars(),
            also=lambda session, revision: once.keep(session, self._view(revision), said),
        )

    async def _fetch(self, order: SourceOrder, caller: Caller, once: Once) -> Answer:
        said = order.model_dump_json()
        if kept := await self._kept(once, said):
            return kept
        plan = Plan(name=order.name, fields=order.fields, files={}, source=order.source, sha256=order.sha256)
        deadline = time.monotonic() + order.wait
        record = await self._arrivals.prepare(caller, plan)
        begun = await self._service.transact(
            once.doing(lambda session: Answer.of(ArrivalView.of(record(session)), ACCEPTED), said)
        )
        id = json.loads(begun.body).get("id")
        if id is None:  # a twin of this request was quicker, and knows the end already
            return begun
        arrival = await self._arrivals.fetch(caller, id, order.wait)
        if arrival.revision is None:
            answer = Answer.of(ArrivalView.of(arrival), ACCEPTED)
        else:
            revision = await self._service.wait(caller, arrival.name, arrival.revision, 0)
            answer = await self._waited(caller, revision, deadline - time.monotonic())
        await self._service.transact(lambda session: once.keep(session, answer, said))
        return answer

    async def _kept(self, once: Once, said: str) -> Answer | None:
        if once.key is None:
            return None
        return await self._service.transact(lambda session: once.kept(session, said))

    async def _waited(self, caller: Caller, revision: Revision, seconds: float) -> Answer:
        with suppress(NotFound):  # deleted again at once; it has still been an upload
            revision = await self._service.wait(caller, revision.adapter.name, revision.number, seconds)
        return self._view(revision)

    def _view(self, revision: Revision) -> Answer:
        home = f"{PREFIX}/adapters/{quote(revision.adapter.name)}"
        return Answer.of(UploadView.of(revision, self._service.catalog, home), ACCEPTED)
