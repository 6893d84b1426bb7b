"""What is answered while the server ends: nothing new, and each connection is told to close. Probes are still heard."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.errors import ShuttingDown
from .errors import answer
from .flights import Flights
from .records import record_of

HEARD = frozenset({"/health", "/health/live", "/health/ready", "/ready", "/metrics", "/version"})
LAST = "the server ends and takes no new requests; another one, or the next one here, will answer"


class Closing:
    """ASGI middleware; `flights` says whether the end has begun."""

    def __init__(self, app: ASGIApp, flights: Flights) -> None:
        self._app = app
        self._flights = flights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._flights.closed:
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        app = self._app
        if self._flights.closed and scope["path"] not in HEARD:
            error = ShuttingDown(LAST)
            record_of(scope).fail(error)
            app = answer(error)
        await app(scope, receive, closing)
