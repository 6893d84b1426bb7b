"""The HTTP server of a process: says when it answers; told to end, it lets what runs come to its end, for a while."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from .. import __version__
from ..core.ahead import import_ahead
from ..core.errors import ShuttingDown
from ..core.log import event, get_logger
from ..engine.text import RENDERER
from ..server.access_log import AccessLog
from ..server.config import ServerConfig
from ..server.counted import count
from ..server.flights import Flights
from ..server.manners import Cors, Manners
from ..server.records import Writer
from ..server.sse import before
from ..server.traces import Traces, wanted
from ._protocol import Protocol

ENDINGS = (signal.SIGINT, signal.SIGTERM)
LAST_WORDS = 1  # seconds that clients get to read how their requests ended
THEN = "what still runs is cut short, at once on another signal"
CUT = "the server ended before this answer did"

Background = Callable[[], Set[asyncio.Task[None]]]  # what runs though no client waits for it

log = get_logger(__name__)


class HttpServer(uvicorn.Server):
    """uvicorn's, with our end: SIGTERM or SIGINT lets `flights` land, for so many seconds; a second one does not."""

    def __init__(
        self,
        app: ASGIApp,
        flights: Flights,
        config: ServerConfig,
        tls: ssl.SSLContext | None,
        background: Background = frozenset,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                h11_max_incomplete_event_size=config.h11_max_incomplete_event_size,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=LAST_WORDS,
                timeout_keep_alive=config.timeout_keep_alive,
            )
        )
        self.config.load()
        self.config.ssl = tls  # read and tried long before
        self.config.http_protocol_class = cast(Any, partial(Protocol, head_seconds=config.timeout_head))
        self._flights = flights
        self._background = background
        self._drain_seconds = config.drain_timeout
        self._deadline: float | None = None  # of what runs; by the loop's clock, once the end has begun
        self._hurry = asyncio.Event()

    async def live(
        self, listener: socket.socket, on_ready: Callable[[], None], signals: Collection[signal.Signals] = ENDINGS
    ) -> None:
        """Serve on `listener` until told to stop. `signals` are heeded from now on until the loop is closed."""
        self._on_ready = on_ready
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what it says, server/errors has said before
        loop = asyncio.get_running_loop()
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        await self.serve(sockets=[listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()
        import_ahead(RENDERER)  # for the first chat, now that nobody waits for the server

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # theirs raises them again
        return nullcontext()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the end, the second hurries it."""
        if self.should_exit:
            self.force_exit = True
            self._hurry.set()
            return
        self._flights.close()
        self.should_exit = True
        self._deadline = asyncio.get_running_loop().time() + self._drain_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._shut_the_door(sockets or ())
        await self._land()
        await super().shutdown(sockets)

    def _shut_the_door(self, sockets: Iterable[socket.socket]) -> None:
        """Who comes now is refused."""
        for server in self.servers:
            server.close()
        for each in sockets:
            each.close()

    async def _land(self) -> None:
        """Wait until nothing runs, the time is over, or somebody hurries; what still runs then is cut off."""
        if told := self._draining():
            log.info(event("draining", **told))
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline):
                await before(self._hurried(), self._landed())
        if cut := self._num_told():
            log.info(event("cut_short", requests=cut, by=self._cut_by()))
        self._flights.stop(ShuttingDown(CUT))

    def _draining(self) -> Mapping[str, object]:
        """What the log says as the end begins; nothing where another process does."""
        running = self._num_told()
        return {"requests": running, "seconds": self._drain_seconds, "then": THEN} if running else {"requests": 0}

    def _num_told(self) -> int:
        """How many run, for the log of this process."""
        return len(self._running())

    def _cut_by(self) -> str:
        return "another signal" if self._hurry.is_set() else "--drain-timeout"

    async def _landed(self) -> None:
        """Returns when nothing runs."""
        while tasks := self._running():
            await asyncio.wait(tasks)

    async def _hurried(self) -> None:
        await self._hurry.wait()

    def _running(self) -> Set[asyncio.Task[None]]:
        return {*self.server_state.tasks, *self._background()}


def manners_of(config: ServerConfig, flights: Flights, count: Callable[[str, str], None] = count) -> Manners:
    """What the flags say of the applications of one server; `count` is told of each answer."""
    writers: list[Writer] = [] if config.access_log == "off" else [AccessLog(config.access_log)]
    if wanted(config.otlp_traces_endpoint):
        writers.append(Traces(config.otlp_traces_endpoint, __version__))
    return Manners(
        flights=flights,
        writers=writers,
        keeps_text=config.log_prompts,
        cors=Cors.of(config),
        body_seconds=config.timeout_body,
        root_path=config.root_path,
        count=count,
    )
