"""Server-sent events, and what to do about a client that hangs up. Knows no model and no request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from ..core.http_status import body_of
from .errors import CLIENT_GONE, ours

KEEP_ALIVE = 15.0  # seconds of silence after which proxies are told that the stream lives
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"

T = TypeVar("T")


def event(payload: Mapping[str, object], name: str | None = None) -> bytes:
    """One event, as bytes on the wire. What is no list and no object in `payload` but can be gone through is a list."""
    said = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), default=list)
    return frame(said.encode("utf-8", "replace"), name)


def frame(said: bytes, name: str | None = None) -> bytes:
    """An event whose data is written already."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + said + b"\n\n"


class EventStream(Response):
    """Sends `events` as they come, then `last`. A client that hangs up closes `events` at once.

    Headers wait for the first event, so that a failure before it is an ordinary HTTP error; a later one is an event.
    """

    media_type = "text/event-stream"
    charset = "utf-8"

    def __init__(
        self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None, *, last: bytes = DONE
    ) -> None:
        """`headers` may still grow until the first event comes."""
        self._end = last
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events
        self._late = {} if headers is None else headers  # empty now is not empty then
        self._started = False
        self._sent = 0
        self._turn = asyncio.Lock()  # two tasks write: the events, and the comments that keep a connection alive

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """As every response, but for the length, which nobody knows yet."""
        self.body = b""
        super().init_headers(headers)
        self.raw_headers = [h for h in self.raw_headers if h[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await before(self._watch(receive, send), self._stream(send))

    async def _stream(self, send: Send) -> None:
        try:
            async for part in self._events:
                await self._send(send, part)
        except Exception as error:
            if not self._started:
                raise
            await self._send(send, event(body_of(ours(error))))
        await self._send(send, self._end, last=True)

    async def _send(self, send: Send, part: bytes, *, last: bool = False) -> None:
        async with self._turn:
            if not self._started:
                self._started = True
                self.headers.update(self._late)
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self._sent += 1
            await send({"type": "http.response.body", "body": part, "more_body": not last})

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Returns when the client is gone; meanwhile breaks long silences."""
        while True:
            sent = self._sent
            try:
                message = await asyncio.wait_for(receive(), KEEP_ALIVE)
            except TimeoutError:
                if self._sent == sent:
                    await self._send(send, COMMENT)
                continue
            if message["type"] == "http.disconnect":
                return


async def unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """What `work` answers; it is cancelled as soon as the client hangs up."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    response = await before(gone(), work)
    return Response(status_code=CLIENT_GONE) if response is None else response


async def before(end: Coroutine[Any, Any, None], work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None when `end` came first; neither runs on after that."""
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
