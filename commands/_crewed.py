"""A server whose HTTP is answered by other processes: this one has the engine, and a socket that they hand on to."""

from __future__ import annotations

import logging
import signal
import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ..server.config import ServerConfig
from ..server.deps import Face
from ..server.workers import wire
from ..server.workers.desk import Desk
from ._crew import Crew
from ._server import THEN, HttpServer

OURS = "aril"  # the logger of all of ours


async def live_with_crew(
    app: ASGIApp, face: Face, config: ServerConfig, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    """Serve on `listener` until told to stop; `app`, which has `face`, answers what the processes hand on.

    Raises Unavailable when they die too often.
    """
    with tempfile.TemporaryDirectory(prefix="aril-") as folder, socket.socket(socket.AF_UNIX) as inner:
        place = Path(folder) / "inner"  # nobody else may look into the folder
        inner.bind(str(place))
        hello = wire.Hello(
            model=face.engine.model,
            text=face.engine.text.told(),
            default_params=face.engine.default_params,
            max_body=face.max_body,
            trusts_templates=face.trusts_templates,
            server=config,
            socket=str(place),
            log_level=logging.getLevelName(logging.getLogger(OURS).level),
        )
        crew = Crew(Desk(face.keys, face.catalog, face.runs, hello), listener, config.api_server_count)
        server = _Inner(app, face, config, crew)
        await server.live(inner, lambda: crew.start(on_ready, server.stop))
        if crew.failure is not None:
            raise crew.failure


class _Inner(HttpServer):
    """Answers what the crew hands on, and outlives it."""

    def __init__(self, app: ASGIApp, face: Face, config: ServerConfig, crew: Crew) -> None:
        # Who reaches the socket is one of ours, and says who asks.
        believing = cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, app), trusted_hosts="*"))
        super().__init__(believing, face.flights, config, tls=None, background=face.responses.running)
        self._crew = crew

    def stop(self) -> None:
        """As a signal would."""
        self.handle_exit(signal.SIGTERM, None)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._crew.tell_to_stop()
        super().handle_exit(sig, frame)

    def _shut_the_door(self, sockets: Iterable[socket.socket]) -> None:
        self._crew.shut_the_door()  # `sockets` are for what the crew hands on, to the end

    def _draining(self) -> Mapping[str, object]:
        """The deadline is told here, for all."""
        return {"background": self._num_told(), "seconds": self._drain_seconds, "then": THEN}

    def _num_told(self) -> int:
        return len(self._background())  # what was handed on is told by who did

    async def _land(self) -> None:
        await super()._land()
        await self._crew.end(self._cut_by())

    async def _landed(self) -> None:
        await self._crew.landed()
        await super()._landed()
