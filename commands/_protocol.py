"""uvicorn's HTTP/1.1, but that what is no request, or comes too slowly to become one, is refused as every wrong request
is: in JSON, by its number. No connection is kept for nothing."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..core.errors import TooSlow
from ..core.http_status import shape
from ..server.request_ids import REQUEST_ID
from ._lingering import Lingering

CODES = {HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "headers_too_large"}


class Protocol(H11Protocol):
    """One connection. The rest of a head that has begun, or of a body after its answer, must come in `head_seconds`."""

    def __init__(self, *args: Any, head_seconds: float, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._head_seconds = head_seconds
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as theirs
        super().connection_made(Lingering(transport, self._is_owed_more))  # type: ignore[arg-type]  # it is as good as one
        self._mind()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_clock()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._mind()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._mind()

    def _mind(self) -> None:
        """Have a clock run while the client owes something that nobody else waits for."""
        state, is_new = self.conn.their_state, self.conn.their_state is h11.IDLE
        has_begun = is_new and bool(self.conn.trailing_data[0])
        is_left_over = state is h11.SEND_BODY and self.cycle.response_complete
        if self.transport.is_closing() or not (has_begun or is_left_over):
            self._stop_clock()
        elif self._clock is None:
            self._clock = self.loop.call_later(self._head_seconds, self._be_late)
        if is_new and not has_begun and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _is_owed_more(self) -> bool:
        """Whether the client may still send, although it has its answer."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return is_answered and self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _be_late(self) -> None:
        self._clock = None
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:
            told = f"the head of the request was not complete {self._head_seconds:g} s after its first byte"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, TooSlow.code, told)
        else:
            self.timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Answer what h11 has just refused, and hang up."""
        error = sys.exc_info()[1]
        status = HTTPStatus(error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400)
        told = f"this is no HTTP/1.1 request that the server reads: {error or msg}"
        self._refuse(status, CODES.get(status, "invalid_http"), told)

    def _refuse(self, status: HTTPStatus, code: str, told: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # it has its answer: only its body is wrong
            self.transport.close()
            return
        body = json.dumps(shape(told, status=status, code=code)).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            REQUEST_ID: uuid.uuid4().hex,
        }
        response = h11.Response(status_code=status, headers=list(headers.items()), reason=status.phrase)
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
