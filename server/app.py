"""The OpenAI face as one application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from fastapi import APIRouter, FastAPI

from .. import __version__
from ..engine.client import EngineClient
from ..engine.metering import Free, Meter
from ..lora.catalog import Catalog
from . import chat, completions, embeddings, errors, health, models, tokens
from .auth import Anyone, KeyVerifier
from .deps import MAX_BODY, Face
from .formats import Formats
from .generation import Here
from .manners import Manners
from .messages import routes as messages
from .openapi import Documented
from .responses import routes as responses
from .responses.shelf import Shelf
from .responses.store import ResponseStore

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(
    engine: EngineClient,
    catalog: Catalog,
    *,
    keys: KeyVerifier | None = None,
    meter: Meter | None = None,
    scrapers: KeyVerifier | None = None,
    kept: ResponseStore | None = None,
    max_body: int = MAX_BODY,
    trusts_templates: bool = False,
    formats: Formats | None = None,
    manners: Manners | None = None,
    routers: Sequence[APIRouter] = (),
    lifespan: Lifespan | None = None,
) -> FastAPI:
    """The application that serves `engine`; `routers` are those of other faces, whose routes have their own door.

    Without `keys` everybody may call, without `scrapers` everybody read /metrics, without a `meter` nothing is counted,
    without `kept` no response is kept, without `formats` calls are read as the chat template teaches them.
    `trusts_templates`: a request may bring its chat template. `lifespan` runs around the serving: what starts and ends
    with it is its affair.
    """
    shelf = Shelf(kept)
    manners = manners or Manners()
    around, root = _closing(shelf, lifespan), manners.root_path
    # The framework's own pages would have a browser fetch scripts from foreign hosts; /openapi.json says the same.
    app = Documented(title="Aril", version=__version__, lifespan=around, root_path=root, docs_url=None, redoc_url=None)
    app.state.engine = engine
    app.state.face = Face(
        engine=engine,
        catalog=catalog,
        runs=Here(engine, meter or Free(), manners.flights),
        keys=keys or Anyone(),
        max_body=max_body,
        scrapers=scrapers or Anyone(),
        flights=manners.flights,
        trusts_templates=trusts_templates,
        responses=shelf,
        formats=formats or Formats.of(engine.text),
    )
    errors.install(app)
    manners.teach(app)
    app.routes.extend(health.router.routes)
    include_inference(app)
    for router in (responses.router, *routers):
        app.routes.extend(router.routes)
    return app


def include_inference(app: FastAPI) -> None:
    """The routes that ask nothing of this process but its face: any process may serve them.

    They are whole, with their door, and become those of `app` as they are. The framework's way to include a router
    would build each of them again, some milliseconds a route at every start, and look through all at every request.
    """
    for module in (chat, completions, embeddings, messages, models, tokens):
        app.routes.extend(module.router.routes)


def _closing(shelf: Shelf, lifespan: Lifespan | None) -> Lifespan:
    """`lifespan`, at whose end nothing is made in the background any more."""

    @asynccontextmanager
    async def around(app: FastAPI) -> AsyncIterator[None]:
        async with nullcontext() if lifespan is None else lifespan(app):
            try:
                yield
            finally:
                await shelf.close()

    return around
