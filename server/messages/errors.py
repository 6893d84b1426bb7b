"""Errors of /v1/messages in the shape that Anthropic's clients read, wherever in the application they arise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...core.http_status import body_of, status_of

PATH = "/v1/messages"
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def told(error: Exception) -> dict[str, Any]:
    """The body that tells of `error`."""
    return _shape(status_of(error), body_of(error))


def _shape(status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's error body as Anthropic's; the field at fault and the code stay in it."""
    return {"type": "error", "error": {**body["error"], "type": TYPES.get(status, "invalid_request_error")}}


class Translated:
    """ASGI middleware: an error on the way to a client of /v1/messages takes Anthropic's shape."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or not (path == PATH or path.startswith(f"{PATH}/")):
            await self._app(scope, receive, send)
            return
        start: Message = {}

        async def translating(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
            elif start and message["type"] == "http.response.body":  # errors are sent in one piece
                body = _translated(start["status"], message.get("body", b""))
                MutableHeaders(scope=start)["content-length"] = str(len(body))
                await send(start)
                await send({**message, "body": body})
            else:
                await send(message)

        await self._app(scope, receive, translating)


def _translated(status: int, body: bytes) -> bytes:
    try:
        return json.dumps(_shape(status, json.loads(body)), ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError):
        return body  # an answer to somebody who is gone has none
