"""The OpenAI face as one application."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from fastapi import APIRouter, Depends, FastAPI

from .. import __version__
from ..engine.client import EngineClient
from ..engine.metering import Free, Meter
from ..lora.catalog import Catalog
from . import chat, completions, embeddings, errors, health, models, tokens
from .auth import Anyone, KeyVerifier
from .closing import Closing
from .counted import Counted
from .deps import BEARER, MAX_BODY, Face, caller_of
from .flights import Flights
from .generation import Here
from .openapi import Documented
from .request_ids import RequestIds

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(
    engine: EngineClient,
    catalog: Catalog,
    *,
    keys: KeyVerifier | None = None,
    meter: Meter | None = None,
    scrapers: KeyVerifier | None = None,
    max_body: int = MAX_BODY,
    flights: Flights | None = None,
    trusts_templates: bool = False,
    routers: Sequence[APIRouter] = (),
    lifespan: Lifespan | None = None,
) -> FastAPI:
    """The application that serves `engine`; `routers` are those of other faces, which keep their own door.

    Without `keys` everybody may call, without `scrapers` everybody read /metrics, without a `meter` nothing is counted,
    without `flights` as much may be held as comes. `trusts_templates`: a request may bring its chat template.
    `lifespan` runs around the serving: what starts and ends with it is its affair.
    """
    app = Documented(title="Aril", version=__version__, lifespan=lifespan)
    flights = flights or Flights()
    app.state.engine = engine
    app.state.face = Face(
        engine=engine,
        catalog=catalog,
        runs=Here(engine, meter or Free(), flights),
        keys=keys or Anyone(),
        max_body=max_body,
        scrapers=scrapers or Anyone(),
        flights=flights,
        trusts_templates=trusts_templates,
    )
    errors.install(app)
    app.add_middleware(Closing, flights=flights)
    app.add_middleware(Counted)
    app.add_middleware(RequestIds)
    app.include_router(health.router)
    for module in (chat, completions, embeddings, models, tokens):
        app.include_router(module.router, dependencies=[Depends(BEARER), Depends(caller_of)])
    for router in routers:
        app.include_router(router)
    return app
