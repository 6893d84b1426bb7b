"""Patience with bodies: a line may be slow, but bytes must keep coming while they are waited for."""

from __future__ import annotations

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.errors import TooSlow

LEAST = 32 << 10  # bytes that must come in the seconds that a body is waited for: 550 each, where there are 60
LENGTHS = {b"content-length", b"transfer-encoding"}  # the second holds


class Patience:
    """ASGI middleware: who reads a body whose bytes do not come gets TooSlow, and its connection is closed. So is one
    whose request tells the length of its body in two ways."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._seconds)
        names = {name for name, _ in scope["headers"]}
        is_ambiguous = names >= LENGTHS  # a proxy may have read another length: what follows is not to be trusted

        async def parting(message: Message) -> None:
            if message["type"] == "http.response.start" and (body.is_late or is_ambiguous):
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, body.receive, parting)


class _Body:
    """What comes of one. Only the time that it is waited for counts: a reader may take its own."""

    def __init__(self, receive: Receive, seconds: float) -> None:
        self.is_late = False
        self._receive = receive
        self._seconds = seconds
        self._left = seconds
        self._came = 0  # bytes, since that time began
        self._is_whole = False

    async def receive(self) -> Message:
        """The next part; after the last, whatever comes, whenever it does. Raises TooSlow."""
        if self._is_whole:
            return await self._receive()
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._left):
                message = await self._receive()
        except TimeoutError:
            self.is_late = True
            raise TooSlow(
                f"of the body, {self._came} bytes came in {self._seconds:g} s; at least {LEAST} or the rest must come"
            ) from None
        self._left -= clock() - began
        self._note(message)
        return message

    def _note(self, message: Message) -> None:
        self._is_whole = not message.get("more_body", False)
        self._came += len(message.get("body", b""))
        if self._came >= LEAST:
            self._left, self._came = self._seconds, 0
