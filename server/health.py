"""What operators and their tools ask: alive, ready, measured, which version. Only metrics may need a key."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse

from .. import __version__
from ..core import metrics
from ..core.errors import EngineDead, ShuttingDown
from ..engine.client import EngineClient
from .answers import Alive, Ready, Version
from .deps import FaceDep
from .openapi import answers
from .vllm_names import VllmNames

router = APIRouter()


async def engine_of(request: Request) -> EngineClient:
    """The engine of this process, of which it is asked."""
    return cast(EngineClient, request.app.state.engine)


EngineDep = Annotated[EngineClient, Depends(engine_of)]


@router.get("/health", responses=answers(Alive))
@router.get("/health/live", responses=answers(Alive))
async def health(engine: EngineDep) -> dict[str, Any]:
    """200 while the engine lives; 503 when only a restart helps."""
    if not engine.status().alive:
        raise EngineDead("the engine has stopped; start the server again")
    return {"status": "alive"}


@router.get("/ready", responses=answers(Ready))
@router.get("/health/ready", responses=answers(Ready))
async def ready(engine: EngineDep, face: FaceDep) -> dict[str, Any]:
    """200 when requests can be served, with how busy the engine is; 503 once the server has been told to end, too."""
    status = engine.status()
    if not status.alive:
        raise EngineDead("the engine has stopped; start the server again")
    if face.flights.closed:
        raise ShuttingDown("the server ends: it takes no new requests")
    return {
        "status": "ready",
        "model": engine.model.id,
        "running": status.running,
        "waiting": status.waiting,
        "total_blocks": status.total_blocks,
        "free_blocks": status.free_blocks,
        "loaded_adapters": len(status.loaded_adapters),
        "adapter_slots_used": status.adapter_slots_used,
        "adapter_slots_busy": status.adapter_slots_busy,
        "adapter_bytes_used": status.adapter_bytes_used,
        "adapter_bytes_total": status.adapter_bytes_total,
    }


@router.get("/metrics", response_class=PlainTextResponse)
async def measured(request: Request, face: FaceDep, engine: EngineDep) -> Response:
    """All metrics, for Prometheus. They name adapters, so that an operator may set a key for them."""
    await face.scrapers.verify(request.headers.get("authorization"), "", request.query_params.multi_items())
    beside = VllmNames(engine.model.id, engine.status())
    return Response(metrics.render(beside), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/version", responses=answers(Version))
async def version() -> dict[str, str]:
    """The version of Aril."""
    return {"version": __version__}
