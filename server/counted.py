"""Counts the answers of an application by route and status, streams included."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.metrics import counter

ANSWERS = counter("http_answers", "HTTP responses begun, by route and status.", ("route", "status"))


class Counted:
    """ASGI middleware; a path that no route knows counts as `unknown`, so that labels stay few."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "unknown")
                ANSWERS.labels(route, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counting)
