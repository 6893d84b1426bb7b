"""Fetches adapters from sources, in the background. A server holds what it fetches; when it dies another goes on."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from ...core.callers import Caller, Scope
from ...core.errors import ArilError, Unavailable
from ...core.log import event, get_logger
from ...lora.config import WEIGHTS_FILE
from ...lora.store import KEPT, AdapterStore
from .. import archives
from ..adapters import AdapterService
from ..db import Database
from ..origins import Allowed, Order, Origin, sources
from ..repo import Particulars
from ..tables import Arrival
from ..tasks import Tasks
from . import rows
from .receiving import check_sha256, scratch_of

T = TypeVar("T")
MAX_FETCHES = 8  # at a time
MAX_OF_A_TENANT = 2
log = get_logger(__name__)


class Fetching:
    """What this server fetches."""

    def __init__(
        self,
        database: Database,
        store: AdapterStore,
        service: AdapterService,
        allowed: Allowed,
        max_bytes: int,
        server: str,
    ) -> None:
        self._database = database
        self._store = store
        self._service = service
        self._allowed = allowed
        self._max_bytes = max_bytes
        self._server = server
        self._running = Tasks()
        self._claiming = asyncio.Lock()
        self._busy: Counter[int] = Counter()  # fetches that run here, by tenant

    async def begin(self, id: str) -> None:
        """Take up one fetch, if there is a hand free and no other server was quicker."""
        await self._claim(id)

    async def go_on(self) -> None:
        """Take up what nobody fetches, as far as there are hands free."""
        while await self._claim(None):
            pass

    def stop(self) -> None:
        """Drop everything as it is."""
        self._running.cancel()

    async def _claim(self, id: str | None) -> bool:
        async with self._claiming:
            full = [tenant for tenant, running in self._busy.items() if running >= MAX_OF_A_TENANT]
            if self._busy.total() >= MAX_FETCHES:
                return False
            arrival = await self._database.run(lambda session: rows.claim(session, self._server, id, full))
            if arrival is None:
                return False
            self._busy[arrival.tenant_id] += 1
        self._running.start(self._run(arrival))
        return True

    async def _run(self, arrival: Arrival) -> None:
        """Fetch, for as long as the registry says that this server does."""
        work = asyncio.get_running_loop().create_task(self._try(arrival))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=rows.LEASE / 3)
                if not work.done() and not await self._is_ours(arrival.id):
                    log.warning(event("fetch_given_up", upload=arrival.id, source=arrival.source))
                    return
        finally:
            work.cancel()
            self._busy[arrival.tenant_id] -= 1

    async def _is_ours(self, id: str) -> bool:
        try:
            return await self._database.run(lambda session: rows.renew(session, self._server, id))
        except Unavailable:
            return True  # as far as anybody can say now

    async def _try(self, arrival: Arrival) -> None:
        try:
            await self._fetch(arrival)
        except Exception as error:
            if not isinstance(error, ArilError):
                log.error(event("fetch_crashed", upload=arrival.id), exc_info=error)
                error = ArilError("the server failed to fetch this; its log says why")
            told = error
            log.warning(event("fetch_failed", upload=arrival.id, source=arrival.source, error=told))
            await self._database.run(lambda session: rows.fail(session, arrival.id, told))

    async def _fetch(self, arrival: Arrival) -> None:
        assert arrival.source is not None
        origin = Origin.of(arrival.source)
        async with scratch_of(self._store) as folder:
            order = Order(folder, self._max_bytes, self._allowed)
            try:
                source = await _in_thread(lambda: sources[origin.scheme].fetch(origin, order))
            finally:
                order.given_up.set()  # a thread that is still at it ends soon
            await self._service.upload(
                _caller(arrival),
                arrival.name,
                _contents(folder, arrival.sha256, self._max_bytes),
                Particulars(**arrival.fields, source=source),
                also=lambda session, revision: rows.complete(session, arrival.id, revision),
            )
        log.info(event("fetched", upload=arrival.id, adapter=arrival.name, source=source))


@contextmanager
def _contents(folder: Path, sha256: str | None, max_bytes: int) -> Iterator[Mapping[str, BinaryIO | Path]]:
    """What was fetched, as an upload; `sha256` must be that of the archive, or else of the weights."""
    archive = next((file for file in folder.iterdir() if file.name.lower().endswith(archives.SUFFIXES)), None)
    judged = archive or folder / WEIGHTS_FILE
    if sha256 is not None and judged.exists():
        check_sha256(judged, sha256)
    if archive is None:
        yield {name: folder / name for name in KEPT if (folder / name).exists()}
        return
    with archive.open("rb") as packed, archives.opened(archive.name, packed, max_bytes) as members:
        yield members


def _caller(arrival: Arrival) -> Caller:
    """Whoever asked for it."""
    return Caller(
        name=arrival.author,
        tenant=arrival.tenant.name,
        tenant_id=arrival.tenant_id,
        scopes=frozenset({Scope.READ, Scope.WRITE}),
        origin=arrival.origin,
    )


async def _in_thread(work: Callable[[], T]) -> T:
    """`work` in a thread of its own, which nobody waits for when the process ends: a download may take an hour."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            failure = error
            _tell(loop, done, lambda: done.set_exception(failure))
        else:
            _tell(loop, done, lambda: done.set_result(result))

    threading.Thread(target=run, name="fetch", daemon=True).start()
    return await done


def _tell(loop: asyncio.AbstractEventLoop, done: asyncio.Future[T], say: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: None if done.done() else say())
