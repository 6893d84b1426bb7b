"""The composition root: engine, store, registry and both HTTP faces become one running server.

Here, and nowhere else, the floors meet. A server belongs to one state folder, and a state folder to one server.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from ..admin_api.app import Admin, build
from ..admin_api.settings import AdminSettings
from ..core.errors import Conflict, InvalidRequest
from ..engine.aio import AsyncEngine
from ..engine.config import EngineConfig
from ..engine.engine import Engine
from ..lora.store import AdapterStore
from ..server.app import create_app
from ..server.auth import StaticKeys
from ._examples import register_examples

LAST_WORDS = 1  # seconds that answers get to end once the server has been told to stop


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseOptions:
    """What an operator decides about one server."""

    engine: EngineConfig
    settings: AdminSettings
    host: str
    port: int  # 0: any free one
    api_keys: tuple[str, ...] = ()
    with_examples: bool = False  # register the example adapters at the first start


@dataclass(frozen=True, slots=True)
class House:
    """A server that is about to answer."""

    url: str
    engine: AsyncEngine
    admin: Admin


def serve(options: HouseOptions, announce: Callable[[House, list[str]], None]) -> None:
    """Serve until SIGINT or SIGTERM; `announce` hears of the house and its active adapters once it answers.

    What can fail quickly comes first: the port, the state folder, then the model. Loading happens before the event loop
    starts, so that Ctrl-C ends it too.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(_listening(options.host, options.port))
        stack.enter_context(_locked(options.settings.state_dir, "state folder", "--state-dir"))
        root = options.engine.adapter_store or options.settings.state_dir / "store"
        stack.enter_context(_locked(root, "adapter store", "--store"))
        store = AdapterStore(root)
        engine = Engine(options.engine, adapter_folder=lambda ref: store.path(ref.digest))
        client = AsyncEngine(engine)
        admin = build(options.settings, client, store, engine.targets)
        house = House(_url(options.host, listener), client, admin)
        asyncio.run(_live(house, options, listener, announce))


async def _live(
    house: House, options: HouseOptions, listener: socket.socket, announce: Callable[[House, list[str]], None]
) -> None:
    try:
        await house.admin.start()
        if options.with_examples:
            await register_examples(house.admin.service, options.settings.state_dir)
        keys = StaticKeys(options.api_keys) if options.api_keys else None
        app = create_app(house.engine, house.admin.catalog, keys=keys, routers=[house.admin.router])
        server = _Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=LAST_WORDS))
        gc.freeze()  # what has been loaded stays: collections while serving need not walk it
        names = [entry.name for entry in await house.admin.catalog.list()]
        await server.live(listener, lambda: announce(house, names))
    finally:
        await house.admin.close()
        await house.engine.close()


class _Server(uvicorn.Server):
    """Says when it answers, and takes a signal as the ordinary way to end."""

    async def live(self, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        """Serve on `listener` until told to stop."""
        self._on_ready = on_ready
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what it says, server/errors has said before
        await self.serve(sockets=[listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # theirs raises them again
        return self._stopping()

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket; raises Conflict when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and isinstance(error.errno, int) and "in use" in str(error):
                raise Conflict(f"port {port} on {host} is in use; choose another with --port") from None
            raise InvalidRequest(f"cannot listen on {host} port {port}: {error}", param="port") from None
        yield listener


@contextmanager
def _locked(folder: Path, what: str, flag: str) -> Iterator[None]:
    """A folder for ourselves; raises Conflict when another server has it."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((folder / "lock").open("w"))
        except OSError as error:
            raise InvalidRequest(f"{flag} {folder}: cannot be used as the {what}: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Conflict(f"another server uses the {what} {folder}; choose another with {flag}") from None
        yield


def _url(host: str, listener: socket.socket) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{listener.getsockname()[1]}"
