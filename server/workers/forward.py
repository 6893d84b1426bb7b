"""Requests that only the process with the engine can answer: handed on to its socket, both bodies as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import cast

import httpx
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ...core.errors import EngineDead, NotFound, TooSlow
from ..errors import answer
from ..sse import before
from .link import GONE

Headers = list[tuple[bytes, bytes]]
OF_A_CONNECTION = {
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
SAID_ANEW = {b"expect", b"x-forwarded-for", b"x-forwarded-proto", b"forwarded"}  # of a request
OF_A_SERVER = {b"date", b"server"}  # of an answer, which the server of this process adds


class Forward:
    """ASGI application. Who it is that asks is told in X-Forwarded-For, which the other end trusts."""

    def __init__(self, socket: Path) -> None:
        # A connection for each request: one that is kept may be closed by the other end as it is used again.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = httpx.AsyncHTTPTransport(uds=str(socket), limits=limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _path(scope).startswith(b"/"):  # CONNECT, OPTIONS *, or the address of another server
            missing = NotFound(f"Not Found: {scope['method']} {scope['path']}", code="not_found")
            await answer(missing)(scope, receive, send)
            return
        body = _Body(receive)
        request = _request(scope, body)
        try:
            response = await before(body.client_gone(), self._transport.handle_async_request(request))
        except ClientDisconnect:
            return
        except TooSlow as error:
            await answer(error)(scope, receive, send)
            return
        except httpx.TransportError:
            await answer(EngineDead(GONE))(scope, receive, send)
            return
        if response is not None:
            await before(body.client_gone(), self._hand_back(response, send))

    async def _hand_back(self, response: httpx.Response, send: Send) -> None:
        headers = _without(response.headers.raw, OF_A_CONNECTION | OF_A_SERVER)
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        try:
            async with aclosing(cast(AsyncGenerator[bytes, None], response.aiter_raw())) as parts:
                async for part in parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            await response.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Body:
    """The body of a request, read once; after it nothing but the client's end comes."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.whole = asyncio.Event()  # it has been read

    async def parts(self) -> AsyncIterator[bytes]:
        """As they come; raises ClientDisconnect."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            more = message.get("more_body", False)
            yield message.get("body", b"")
        self.whole.set()

    async def client_gone(self) -> None:
        """Returns when the client has hung up, after its body."""
        await self.whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _request(scope: Scope, body: _Body) -> httpx.Request:
    """As the client sent it, but for what is between the client and this process."""
    target = _path(scope) + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    is_chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
    dropped = OF_A_CONNECTION | SAID_ANEW | ({b"content-length"} if is_chunked else set())  # chunks say how long it is
    headers = _without(scope["headers"], dropped)
    if scope.get("client"):
        headers.append((b"x-forwarded-for", scope["client"][0].encode()))
    headers.append((b"x-forwarded-proto", scope["scheme"].encode()))
    length = next((value for name, value in headers if name == b"content-length"), None)
    has_body = length not in (None, b"0") or is_chunked
    if not has_body:
        body.whole.set()
    content = body.parts() if has_body else None
    # As a URL, httpx would resolve the target's dots and have none that is long; as a method, write it in capitals.
    request = httpx.Request(scope["method"], "http://aril", headers=headers, content=content)
    request.method, request.extensions = scope["method"], {"target": target}
    return request


def _path(scope: Scope) -> bytes:
    path: bytes = scope["raw_path"]
    return path[len(scope.get("root_path", "").encode()) :]


def _without(headers: Iterable[tuple[bytes, bytes]], names: set[bytes]) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in names]
