"""/v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them, over the registry and behind its keys.

Loading is an upload from a folder or URL that the operator allowed, answered when requests may use it; unloading lets
the name mean nothing. Statuses and words of answers are vLLM's, errors have the shape of all others here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse

from ...core.body import ExactBody, describes
from ...core.callers import Caller
from ...core.errors import ArilError, InvalidAdapter, InvalidRequest, NotFound, Unavailable
from ..adapters import AdapterService
from ..arrivals import Arrivals
from ..arrivals.rows import Plan
from ..bodies import reads
from ..guard import CallerDep, Door
from ..tables import Arrival, Stage, State

WAIT_SECONDS = 600.0


class Load(ExactBody):
    """What vLLM's clients send; `lora_path` is a folder of the server's or the URL of a source."""

    lora_name: str = ""
    lora_path: str = ""
    load_inplace: bool = False


class Unload(ExactBody):
    """What vLLM's clients send; vLLM does not read the number either."""

    lora_name: str = ""
    lora_int_id: int | None = None


LoadDep = Annotated[Load, Depends(reads(Load))]
UnloadDep = Annotated[Unload, Depends(reads(Unload))]


class VllmRoutes:
    """The routes, as `router`."""

    def __init__(
        self, door: Door, service: AdapterService, arrivals: Arrivals, *, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        self._service = service
        self._arrivals = arrivals
        self._seconds = wait_seconds
        self.router = APIRouter(
            prefix="/v1", tags=["vLLM"], dependencies=door, default_response_class=PlainTextResponse
        )
        add = self.router.add_api_route
        add("/load_lora_adapter", self.load, methods=["POST"], openapi_extra=describes(Load))
        add("/unload_lora_adapter", self.unload, methods=["POST"], openapi_extra=describes(Unload))

    async def load(self, caller: CallerDep, body: LoadDep) -> str:
        """Upload the adapter that lies in `lora_path`, and answer when the name means it."""
        name = body.lora_name
        if not name or not body.lora_path:
            raise InvalidRequest("Both 'lora_name' and 'lora_path' must be provided.")
        if not body.load_inplace and self._is_loaded(caller, name):
            raise InvalidRequest(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                param="lora_name",
            )
        plan = Plan(name=name, fields={"activate": True}, files={}, source=_url(body.lora_path))
        arrival = await self._arrivals.order(caller, plan)
        number = _arrived(await self._arrivals.wait(caller, arrival.id, self._seconds))
        await self._check(caller, name, number)
        await self._service.activate(caller, name, number)
        return f"Success: LoRA adapter '{name}' added successfully."

    async def unload(self, caller: CallerDep, body: UnloadDep) -> str:
        """Let the name mean nothing. Its revisions stay, and loading the same bytes again is quick."""
        name = body.lora_name
        if not name:
            raise InvalidRequest("'lora_name' needs to be provided to unload a LoRA adapter.")
        if not self._is_loaded(caller, name):
            raise NotFound(f"The lora adapter '{name}' cannot be found.", param="lora_name")
        await self._service.deactivate(caller, name)
        return f"Success: LoRA adapter '{name}' removed successfully."

    def _is_loaded(self, caller: Caller, name: str) -> bool:
        listed = self._service.catalog.seen(caller.tenant, name) if caller.may_use(name) else None
        return listed is not None and listed.default is not None

    async def _check(self, caller: Caller, name: str, number: int) -> None:
        """Wait for the gate; raises InvalidAdapter for what it rejects."""
        found = await self._service.wait(caller, name, number, self._seconds)
        if found.state is State.REJECTED:
            problems = [str(problem) for problem in (found.report or {}).get("problems", ())]
            raise InvalidAdapter(f"{name!r} was rejected: {'; '.join(problems)}", problems=problems)
        if found.state is not State.READY:
            raise Unavailable(f"{name!r} is {found.state.value}; look again later", code="not_ready")


def _url(path: str) -> str:
    """A URL as it is, or that of a path on this machine."""
    return path if "://" in path else f"file://{quote(os.path.abspath(path))}"


def _arrived(arrival: Arrival) -> int:
    """The number of the revision that it has become; raises what went wrong."""
    if arrival.stage is Stage.FAILED:
        raise _told(arrival.problem or {})
    if arrival.revision is None:
        raise Unavailable(f"{arrival.source} is still being fetched, as {arrival.id}", code="not_ready")
    return arrival.revision


def _told(problem: Mapping[str, Any]) -> ArilError:
    kind = {NotFound.code: NotFound, Unavailable.code: Unavailable}.get(problem["code"], InvalidAdapter)
    return kind(problem["message"], param="lora_path", code=problem["code"], problems=problem["problems"])
