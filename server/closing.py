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


class Parting:
    """ASGI middleware that tells each connection to close; `flights` says whether the end has begun."""

    def __init__(self, app: ASGIApp, flights: Flights) -> None:
        self._app = app
        self._flights = flights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def parting(message: Message) -> None:
            if message["type"] == "http.response.start" and self._flights.closed:
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, receive, parting)


class Closing:
    """ASGI middleware that also answers, in place of the application."""

    def __init__(self, app: ASGIApp, flights: Flights) -> None:
        self._app = Parting(app, flights)
        self._last = Parting(_refuse, flights)
        self._flights = flights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_over = self._flights.closed and scope["type"] == "http" and not _is_heard(scope)
        await (self._last if is_over else self._app)(scope, receive, send)


def _is_heard(scope: Scope) -> bool:
    return scope["path"].removeprefix(scope.get("root_path", "")) in HEARD


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error = ShuttingDown(LAST)
    record_of(scope).fail(error)
    await answer(error)(scope, receive, send)
