"""Counts the answers of an application by route and status, streams included."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.metrics import counter
from .route_names import route_of

ANSWERS = counter("http_answers", "HTTP responses begun, by route and status.", ("route", "status"))


def count(route: str, status: str) -> None:
    """One answer more."""
    ANSWERS.labels(route, status).inc()


class Counted:
    """ASGI middleware; a path that no route knows counts as `unknown`, so that labels stay few."""

    def __init__(self, app: ASGIApp, count: Callable[[str, str], None] = count) -> None:
        """`count` is told the route and the status of each answer as it begins."""
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(route_of(scope) or "unknown", str(message["status"]))
            await send(message)

        await self._app(scope, receive, counting)
