"""The composition root: what a server locks and loads. Its HTTP faces are _faces.py.

Here and there, and nowhere else, the floors meet. A server has a state folder to itself; the adapter store it shares
with others where they share a database too.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..admin_api.settings import AdminSettings
from ..core.errors import Conflict, InvalidRequest
from ..core.metrics import ADAPTERS
from ..engine.config import EngineConfig
from ..engine.engine import Engine
from ..engine.text import read_apart
from ..lora.store import AdapterStore
from ..models.source import locate
from ..server.config import ServerConfig
from ..server.traces import wanted
from ._listener import Door, listening, listening_at, url_of
from ._lora_flags import LoraModule
from ._running import LOCK_FILE, sign
from ._tls import tls_of

if TYPE_CHECKING:
    from ._faces import House


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseOptions:
    """What an operator decides about one server."""

    engine: EngineConfig
    server: ServerConfig
    settings: AdminSettings
    host: str
    port: int  # 0: any free one
    metrics_adapters: int = 20  # adapters with series of their own in /metrics
    metrics_key: str | None = None  # that /metrics asks for
    lora_modules: tuple[LoraModule, ...] = ()  # adapters named on the command line
    with_examples: bool = False  # register the example adapters at the first start


def serve(options: HouseOptions, announce: Callable[[House, list[str]], None]) -> None:
    """Serve until SIGINT or SIGTERM; `announce` hears of the house and its active adapters once it answers.

    What can fail quickly comes first: the port, the state folder, then the model; but a folder is made only for a model
    that there is. Loading happens before the event loop starts, so that Ctrl-C ends it too.
    """
    if options.metrics_adapters < 0:
        raise InvalidRequest(f"--metrics-adapters {options.metrics_adapters} is out of range; it takes 0 or more")
    ADAPTERS.limit = options.metrics_adapters
    wanted(options.server.otlp_traces_endpoint)  # tells what is missing
    with ExitStack() as stack:
        uds, tls = options.server.uds, tls_of(options.server)
        listener = stack.enter_context(listening_at(Path(uds)) if uds else listening(options.host, options.port))
        url = url_of(options.host, listener, scheme="https" if tls else "http")
        if not os.path.exists(options.settings.state_dir):
            locate(options.engine.model, revision=options.engine.revision)
        lock = stack.enter_context(_locked(options.settings.state_dir, "state folder", "--state-dir"))
        sign(lock, url)
        store = stack.enter_context(_store(options.engine.adapter_store, options.settings))
        if not options.engine.trust_remote_code:
            read_apart(locate(options.engine.model, revision=options.engine.revision))
        engine = Engine(options.engine, adapter_folder=lambda ref: store.path(ref.digest))
        from ._faces import show  # import_ahead has read most of it while the weights came

        show(engine, store, options, Door(listener, url, tls), announce)


@contextmanager
def _store(place: str | None, settings: AdminSettings) -> Iterator[AdapterStore]:
    """The adapter store at `place`; that of a bucket is cached in the state folder."""
    if place is not None and place.startswith("s3://"):
        from ..lora.bucket import BucketStore

        yield BucketStore(place, settings.state_dir / "cache")
        return
    root = Path(place) if place else settings.state_dir / "store"
    with _locked(root, "adapter store", "--store", shared=settings.is_shared):
        yield AdapterStore(root)


@contextmanager
def _locked(folder: Path, what: str, flag: str, *, shared: bool = False) -> Iterator[IO[str]]:
    """A folder for ourselves, or for all who share it; raises Conflict when another server has it."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((folder / LOCK_FILE).open("a"))
        except OSError as error:
            raise InvalidRequest(f"{flag} {folder}: cannot be used as the {what}: {error.strerror}") from None
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            raise Conflict(f"another server uses the {what} {folder}; choose another with {flag}") from None
        yield file
