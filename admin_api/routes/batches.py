"""/v1/batches, as OpenAI has it."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from ...core.body import describes
from ...core.errors import InvalidRequest
from ..batches import Worker, rows
from ..batches.ids import cursor
from ..batches.views import BatchView, Listed, NewBatch
from ..bodies import reads, says_json
from ..db import Database
from ..guard import CallerDep, Door

IGNORED = "x-aril-ignored-fields"


class BatchRoutes:
    """The routes, as `router`."""

    def __init__(self, door: Door, database: Database, worker: Worker) -> None:
        self._database = database
        self._worker = worker
        self.router = APIRouter(tags=["batches"], dependencies=door)
        add = self.router.add_api_route
        body = describes(NewBatch)
        add("/v1/batches", self.create, methods=["POST"], openapi_extra=body, dependencies=[Depends(says_json)])
        add("/v1/batches", self.list, methods=["GET"])
        add("/v1/batches/{id}", self.get, methods=["GET"])
        add("/v1/batches/{id}/cancel", self.cancel, methods=["POST"])

    async def create(
        self, caller: CallerDep, response: Response, body: Annotated[NewBatch, Depends(reads(NewBatch))]
    ) -> BatchView:
        """Have the requests of a file answered, as background work, within a day."""
        _check_endpoint(body.endpoint, self._worker.paths)
        expiry = body.output_expires_after
        wanted = rows.Wanted(
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            window=body.completion_window,
            tags=body.metadata,
            output_expires_after=None if expiry is None else expiry.seconds,
        )
        made = await self._database.run(partial(rows.create, caller=caller, wanted=wanted))
        self._worker.wake()
        if body.unknown:
            response.headers[IGNORED] = ",".join(sorted(body.unknown))
        return BatchView.of(made)

    async def list(
        self,
        caller: CallerDep,
        after: Annotated[str | None, Query(max_length=64)] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> Listed[BatchView]:
        """The batches of the caller's tenant, the newest first."""
        since = cursor(after, rows.PREFIX)
        found = await self._database.run(partial(rows.batches, tenant_id=caller.tenant_id, after=since, limit=limit))
        return Listed[BatchView].of([BatchView.of(row) for row in found], limit)

    async def get(self, id: str, caller: CallerDep) -> BatchView:
        """One batch."""
        return BatchView.of(await self._database.run(partial(rows.batch, tenant_id=caller.tenant_id, id=id)))

    async def cancel(self, id: str, caller: CallerDep) -> BatchView:
        """Stop it. The answers that there are by then can be read once it is cancelled."""
        found = await self._database.run(partial(rows.cancel, tenant_id=caller.tenant_id, id=id))
        self._worker.changed(id)
        return BatchView.of(found)


def _check_endpoint(endpoint: str, paths: Collection[str]) -> None:
    if endpoint not in paths:
        message = f"endpoint: {endpoint[:100]!r} is none that batches are made for; possible: {', '.join(paths)}"
        raise InvalidRequest(message, param="endpoint")
