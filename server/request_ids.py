"""Every answer names the request it is to: by the id its caller gave it, or a new one. Nothing is found by these."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = "x-request-id"
WRITTEN = r"^[!-~]{1,128}$"  # what a log line can hold
STATE = "request_id"  # where the state of a request has the id for want of another


class RequestIds:
    """ASGI middleware: the header comes back; without a good one, what the route took from the body, or a new id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})[STATE] = uuid.uuid4().hex

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id_of(scope, headers)
            await send(message)

        await self._app(scope, receive, marked)


def request_id_of(scope: Scope, headers: Mapping[str, str]) -> str:
    """The id of the answer for which the route has those headers."""
    return str(_given(scope) or headers.get(REQUEST_ID) or scope["state"][STATE])


def named(request_id: str | None) -> dict[str, str]:
    """The header that brings back the id that stood in a body."""
    return {} if request_id is None else {REQUEST_ID: request_id}


def _given(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == REQUEST_ID.encode() and re.match(WRITTEN, text := value.decode("latin-1")):
            return str(text)
    return None
