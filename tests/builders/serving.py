"""An application behind a real uvicorn, on a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from aril.admin_api.catalog import AdapterCatalog
from aril.admin_api.residency import Residency
from aril.engine.aio import AsyncEngine
from aril.server.app import create_app
from aril.server.config import ServerConfig
from aril.server.deps import Face
from aril.server.flights import Flights
from aril.server.formats import Formats
from aril.server.manners import Manners
from aril.server.workers import wire
from aril.server.workers.app import create_worker_app
from aril.server.workers.desk import Desk
from aril.server.workers.forward import Forward
from aril.server.workers.link import Link
from fastapi import FastAPI
from starlette.types import ASGIApp

from builders.engines import make_engine


@dataclass(frozen=True, slots=True)
class Served:
    """The engine, the names it answers to, and where."""

    url: str
    engine: AsyncEngine
    catalog: AdapterCatalog


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """`app` behind uvicorn on a free port, as long as the context lasts."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # who comes before the server waits for it
    server = uvicorn.Server(_quiet(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def speaking(
    folder: Path, *, tool_call_parser: str | None = None, reasoning_parser: str | None = None
) -> Iterator[str]:
    """A server of the model in `folder`, called "tiny", without adapters."""
    engine = AsyncEngine(make_engine(folder, served_model_name="tiny", max_model_len=4096, kv_cache_memory="32MiB"))
    formats = Formats.of(engine.text, tool_call_parser, reasoning_parser)
    app = create_app(engine, AdapterCatalog("tiny", Residency(engine)), formats=formats)
    try:
        with listening(app) as url:
            yield url
    finally:
        asyncio.run(engine.close())


@contextmanager
def handed_on(app: FastAPI, engine: AsyncEngine) -> Iterator[str]:
    """`app` behind a worker's application, with the wire between them; both on one thread."""
    url: concurrent.futures.Future[str] = concurrent.futures.Future()
    end = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_handing_on(app, engine, url, end)))
    thread.start()
    try:
        yield url.result(timeout=30)
    finally:
        end.set()
        thread.join()


async def _handing_on(
    app: FastAPI, engine: AsyncEngine, url: concurrent.futures.Future[str], end: threading.Event
) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as inner, socket.socket() as outer:
        place = Path(folder) / "inner"
        inner.bind(str(place))
        outer.bind(("127.0.0.1", 0))
        ours, theirs = [await asyncio.open_connection(sock=each) for each in socket.socketpair()]
        face: Face = app.state.face
        hello = wire.Hello(
            model=engine.model,
            text=engine.text.told(),
            default_params=engine.default_params,
            max_body=face.max_body,
            trusts_templates=face.trusts_templates,
            server=ServerConfig(),
            socket=str(place),
            log_level="INFO",
        )
        desk = asyncio.create_task(Desk(face.keys, face.catalog, face.runs, hello).serve("0", *ours, lambda _: None))
        link = Link(*theirs, Flights())
        worker = create_worker_app(link, await link.hello(), Manners(), Forward(place))
        listening = asyncio.create_task(link.listen(lambda _: None))
        servers = [uvicorn.Server(_quiet(app, forwarded_allow_ips="*")), uvicorn.Server(_quiet(worker, lifespan="off"))]
        serving = [
            asyncio.create_task(server.serve(sockets=[each]))
            for server, each in zip(servers, (inner, outer), strict=True)
        ]
        outer.listen()
        inner.listen()
        url.set_result(f"http://127.0.0.1:{outer.getsockname()[1]}")
        await asyncio.to_thread(end.wait)
        for server in reversed(servers):
            server.should_exit = True
        await asyncio.gather(*serving)
        theirs[1].close()
        await asyncio.gather(desk, listening)


def _quiet(app: ASGIApp, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1, **options)
