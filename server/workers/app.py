"""The application of a worker: inference is answered here, all else by the process that has the engine."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from ...engine.text import Text
from .. import errors
from ..app import include_inference
from ..closing import Parting
from ..deps import Face
from ..formats import Formats
from ..manners import Manners
from ..patience import Patience
from . import wire
from .forward import Forward
from .link import Facts, Link


def create_worker_app(link: Link, hello: wire.Hello, manners: Manners, forward: Forward) -> ASGIApp:
    """What `hello` says is served, through `link`; what is not inference goes to `forward`, and is counted, recorded
    and, at the end, refused by who answers it."""
    app = FastAPI(openapi_url=None, root_path=manners.root_path)
    text, server = Text.heard(hello.text), hello.server
    app.state.face = Face(
        engine=Facts(hello.model, text, hello.default_params),
        catalog=link,
        runs=link,
        keys=link,
        max_body=hello.max_body,
        flights=manners.flights,
        trusts_templates=hello.trusts_templates,
        formats=Formats.of(text, server.tool_call_parser, server.reasoning_parser),
    )
    errors.install(app)
    manners.teach(app)
    include_inference(app)
    other: ASGIApp = Parting(errors.Crashes(forward), manners.flights)
    return Split(app, other if manners.body_seconds is None else Patience(other, manners.body_seconds))


@dataclass(frozen=True, slots=True)
class Split:
    """ASGI application: `app` for the paths that it has, `other` for the rest."""

    app: FastAPI
    other: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = {**scope, "root_path": self.app.root_path}
        is_ours = scope["type"] != "http" or any(_knows(route, seen) for route in self.app.routes)
        await (self.app if is_ours else self.other)(scope, receive, send)


def _knows(route: BaseRoute, scope: Scope) -> bool:
    return route.matches(scope)[0] is not Match.NONE
