"""One process that answers HTTP and has no engine: `python -m aril.commands._worker LISTENER LINK`, two descriptors.

_crew.py starts it. It ends when the process that has the engine says so or is gone, and heeds no signal: Ctrl-C and a
service manager send theirs to both, and one end is not to be begun twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from ..core import log
from ..server.config import ServerConfig
from ..server.flights import Flights
from ..server.workers import wire
from ..server.workers.app import create_worker_app
from ..server.workers.forward import Forward
from ..server.workers.link import Link
from ._server import ENDINGS, HttpServer, manners_of
from ._tls import tls_of

QUEUE = 2048  # connections that wait to be accepted


class Shared(socket.socket):
    """A listening socket that other processes accept from too."""

    def listen(self, backlog: int = QUEUE, /) -> None:
        """The queue is everybody's: how many one process takes at a time is not its length."""
        super().listen(QUEUE)

    def accept(self) -> tuple[socket.socket, Any]:
        """One connection, then it is another's turn: a process that has the core would take all that come at once.

        Of 64 that came at once the busier of two processes on busy cores had 44 without that (median of 48 times,
        62 at most), and 33 with it (of 24; 51 at most).
        """
        found = super().accept()
        os.sched_yield()
        return found


class _Outer(HttpServer):
    """Clients come here. Told to end, it says when nothing runs any more and goes on to answer those who have a
    connection, until nothing runs anywhere or the time is over: that is for the other end to say."""

    def __init__(self, app: ASGIApp, flights: Flights, config: ServerConfig, link: Link) -> None:
        super().__init__(app, flights, config, tls_of(config))
        self._link = link
        self._last_order: wire.Order | None = None

    def obey(self, order: wire.Order) -> None:
        """What the process with the engine wants."""
        if not self.should_exit:
            self.handle_exit(signal.SIGTERM, None)
            self._deadline = None
        self._last_order = order
        if isinstance(order, wire.Quit):
            self._hurry.set()

    def _draining(self) -> Mapping[str, object]:
        running = self._num_told()
        return {"requests": running} if running else {}

    def _cut_by(self) -> str:
        assert isinstance(self._last_order, wire.Quit)
        return self._last_order.by

    async def _landed(self) -> None:
        await super()._landed()
        self._link.tell(wire.Landed())
        await self._hurry.wait()


async def live(listener: socket.socket, link_socket: socket.socket) -> None:
    """Serve until the other end says stop, or is gone."""
    reader, writer = await asyncio.open_connection(sock=link_socket)
    flights = Flights()
    link = Link(reader, writer, flights)
    hello = await link.hello()
    log.configure(hello.log_level)
    manners = manners_of(hello.server, flights, link.count)
    app = create_worker_app(link, hello, manners, Forward(Path(hello.socket)))
    server = _Outer(app, flights, hello.server, link)
    server.config.backlog = 1  # one connection at a time, so that the other processes get theirs
    listening = asyncio.create_task(link.listen(server.obey))
    listening.add_done_callback(lambda _: server.obey(wire.Quit("the end of the engine")))
    await server.live(listener, lambda: link.tell(wire.Ready()), signals=())
    listening.cancel()
    writer.close()


def main() -> None:
    """The whole life of the process."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    listener, link = (int(number) for number in sys.argv[1:])
    asyncio.run(live(Shared(fileno=listener), socket.socket(fileno=link)))


if __name__ == "__main__":
    main()
