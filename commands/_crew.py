"""The processes that answer HTTP for a server with more than one: started, restarted when they die, ended.

All accept from one listening socket, which stays open here: who comes while one is being started again waits for it,
or is taken by another.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from ..core.errors import Unavailable
from ..core.log import event, get_logger
from ..server.workers import wire
from ..server.workers.desk import Desk

MODULE = f"{__package__}._worker"
MOST_DEATHS = 5  # of all of them, in so many seconds; more are no accident, and end the server
SECONDS = 60.0
GRACE = 10.0  # seconds that one which has been told to quit gets, before it is killed

log = get_logger(__name__)


class Crew:
    """Owner of the processes. Lives on the event loop."""

    def __init__(self, desk: Desk, listener: socket.socket, size: int) -> None:
        self.failure: Exception | None = None  # why it gave up
        self._desk = desk
        self._listener = listener
        self._size = size
        self._processes: set[Process] = set()
        # By the writers of those that have been told whom they answer for: done when nothing runs there at the end.
        self._landings: dict[asyncio.StreamWriter, asyncio.Future[None]] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._deaths: deque[float] = deque(maxlen=MOST_DEATHS)
        self._stopping = False

    def start(self, on_ready: Callable[[], None], on_failure: Callable[[], None]) -> None:
        """Start all of them; `on_ready` is called once each has said that it accepts, `on_failure` when too many have
        died."""
        self._on_failure = on_failure
        waited_for = set(range(self._size))

        def ready(place: int) -> None:
            if waited_for == {place}:
                self._announce(on_ready)
            waited_for.discard(place)

        self._listener.listen()
        self._keepers = [asyncio.create_task(self._keep(place, partial(ready, place))) for place in range(self._size)]

    def tell_to_stop(self) -> None:
        """Begin the end: all of them take nothing new, and none is started again."""
        if not self._stopping:
            self._stopping = True
            self._tell(wire.Stop())

    def shut_the_door(self) -> None:
        """Theirs close by themselves: who comes now is refused."""
        self._listener.close()

    async def landed(self) -> None:
        """Returns when each has said that nothing runs there any more, or is gone."""
        if self._landings:
            await asyncio.wait(self._landings.values())

    async def end(self, by: str) -> None:
        """End all of them, and what still runs there: `by` is what cuts it short."""
        self._tell(wire.Quit(by))
        if self._keepers:
            await asyncio.wait(self._keepers, timeout=GRACE)
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    def _tell(self, order: wire.Order) -> None:
        for writer in self._landings:
            writer.write(wire.frame([order]))

    def _announce(self, on_ready: Callable[[], None]) -> None:
        """What goes wrong then is no fault of the process that was the last to be ready."""
        try:
            on_ready()
        except Exception as error:
            self._give_up(error)

    async def _keep(self, place: int, on_ready: Callable[[], None]) -> None:
        """One place in the crew: a process, and the next when it has died."""
        while not self._stopping:
            began = time.monotonic()
            try:
                code: int | str = await self._live(place, on_ready)
            except OSError as error:  # no process or descriptor is to be had now
                code = str(error)
            if self._stopping:
                return
            log.error(event("worker_died", code=code, seconds=round(time.monotonic() - began, 1)))
            if self._too_many():
                self._give_up(
                    Unavailable(
                        f"{MOST_DEATHS} processes that answer HTTP have died within {SECONDS:g} s, the last with code "
                        f"{code}; the log says why"
                    )
                )
                return

    async def _live(self, place: int, on_ready: Callable[[], None]) -> int:
        """The life of one process; its exit code."""
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        with theirs, closing(writer):
            process = await self._start(theirs)
            self._processes.add(process)
            theirs.close()
            try:
                if self._stopping:
                    process.kill()  # it has taken no connection yet
                await self._serve(place, process, reader, writer, on_ready)
                return await process.wait()
            finally:
                self._processes.discard(process)

    async def _start(self, link: socket.socket) -> Process:
        handed = self._listener.fileno(), link.fileno()
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", MODULE, *map(str, handed), pass_fds=handed, stdin=DEVNULL
        )

    async def _serve(
        self,
        place: int,
        process: Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_ready: Callable[[], None],
    ) -> None:
        # What it serves begins with its first word, before any other can be said.
        landing = self._landings[writer] = asyncio.get_running_loop().create_future()

        def hear(word: wire.OfItself) -> None:
            if isinstance(word, wire.Ready):
                on_ready()
            elif not landing.done():
                landing.set_result(None)

        try:
            await self._desk.serve(str(place), reader, writer, hear)
        except Exception as error:  # it says what cannot be said: it is not to be trusted with anything else
            log.error(event("worker_not_understood", error=repr(error)), exc_info=error)
            with suppress(ProcessLookupError):
                process.kill()
        finally:
            del self._landings[writer]
            landing.cancel()

    def _too_many(self) -> bool:
        now = time.monotonic()
        self._deaths.append(now)
        return len(self._deaths) == MOST_DEATHS and now - self._deaths[0] < SECONDS

    def _give_up(self, why: Exception) -> None:
        self.failure = why
        self._on_failure()
