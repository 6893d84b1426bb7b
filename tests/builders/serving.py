"""An application behind a real uvicorn, on a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from aril.admin_api.catalog import AdapterCatalog
from aril.engine.aio import AsyncEngine
from fastapi import FastAPI


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
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
