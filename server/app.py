"""The OpenAI face as one application."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from fastapi import APIRouter, Depends, FastAPI

from .. import __version__
from ..engine.client import EngineClient
from ..lora.catalog import Catalog
from . import chat, completions, errors, health, models, tokens
from .auth import KeyVerifier
from .counted import Counted
from .deps import MAX_BODY, Face, caller_of

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(
    engine: EngineClient,
    catalog: Catalog,
    *,
    keys: KeyVerifier | None = None,
    max_body: int = MAX_BODY,
    routers: Sequence[APIRouter] = (),
    lifespan: Lifespan | None = None,
) -> FastAPI:
    """The application that serves `engine`; `routers` are those of other faces, which keep their own door.

    Without `keys` everybody may call. `lifespan` runs around the serving: what starts and ends with it is its affair.
    """
    app = FastAPI(title="Aril", version=__version__, lifespan=lifespan)
    app.state.face = Face(engine, catalog, keys, max_body)
    app.add_middleware(Counted)
    errors.install(app)
    app.include_router(health.router)
    for module in (chat, completions, models, tokens):
        app.include_router(module.router, dependencies=[Depends(caller_of)])
    for router in routers:
        app.include_router(router)
    return app
