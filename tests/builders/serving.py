"""An application behind a real uvicorn, on a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from aril.admin_api.catalog import AdapterCatalog
from aril.admin_api.residency import Residency
from aril.engine.aio import AsyncEngine
from aril.server.app import create_app
from aril.server.formats import Formats
from fastapi import FastAPI

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
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
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
