"""Uploads that come in parts: made, filled, completed, given up, and forgotten when nobody comes back.

A part is durable in the store before its row counts it, and counted before it is acknowledged. Any server on the same
database and store can go on with an upload. A crash leaves parts that no row names; `tend` removes them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import count
from typing import TypeVar

from sqlalchemy.orm import Session

from ...core.callers import Caller
from ...core.errors import Conflict, InvalidRequest, NotFound, TooLarge, Unavailable
from ...core.log import event, get_logger
from ...lora.store import AdapterStore
from ..adapters import AdapterService
from ..db import Database
from ..names import check_name
from ..origins import Allowed, Origin, sources
from ..repo import Particulars
from ..settings import AdminSettings
from ..tables import Arrival, Stage
from ..tasks import Tasks
from . import rows
from .fetching import Fetching
from .receiving import digest_in, joined, offset_in, receive, scratch_of

OPEN_UPLOADS = 8  # times the largest upload: what a tenant may have under way
TEND_SECONDS = 10.0
SWEEP_EVERY = 30  # times
LOOK_AGAIN_SECONDS = 0.2
T = TypeVar("T")
log = get_logger(__name__)


class Arrivals:
    """What is on its way in."""

    def __init__(
        self, settings: AdminSettings, database: Database, store: AdapterStore, service: AdapterService, server: str
    ) -> None:
        self._max_bytes = settings.max_upload_bytes
        self._is_shared = settings.is_shared
        self._allowed = Allowed.of(settings.adapter_roots, settings.allowed_sources, settings.allowed_addresses)
        self._database = database
        self._store = store
        self._service = service
        self._fetching = Fetching(database, store, service, self._allowed, self._max_bytes, server)
        self._tending = Tasks()

    async def prepare(self, caller: Caller, plan: rows.Plan) -> Callable[[Session], Arrival]:
        """What is left to do in a transaction to begin an upload in parts, or a fetch. Raises InvalidRequest,
        Unsupported, Forbidden, TooLarge or Conflict; the transaction may raise RateLimited."""
        check_name(plan.name, self._service.catalog.base)
        if plan.source is not None:
            origin = Origin.of(plan.source)
            await asyncio.to_thread(sources[origin.scheme].check, origin, self._allowed)
        if sum(size for size, _ in plan.files.values()) > self._max_bytes:
            raise TooLarge(f"an upload may have {self._max_bytes} bytes", param="files")
        most = OPEN_UPLOADS * self._max_bytes
        return lambda session: rows.create(session, caller, plan, most)

    async def transact(self, work: Callable[[Session], T]) -> T:
        """Do `work`, which may be what `prepare` has left and more, in one transaction."""
        return await self._database.run(work)

    async def fetch(self, caller: Caller, id: str, seconds: float = 0.0) -> Arrival:
        """See to it that it is being fetched; it is returned when it has ended, or as it is after `seconds`."""
        await self._fetching.begin(id)
        return await self.wait(caller, id, seconds)

    async def order(self, caller: Caller, plan: rows.Plan) -> Arrival:
        """Begin to fetch an adapter in the background; raises what `prepare` raises."""
        arrival = await self._database.run(await self.prepare(caller, plan))
        return await self.fetch(caller, arrival.id)

    async def all(self, caller: Caller) -> Sequence[Arrival]:
        """The caller's, the newest first."""
        return await self._database.look(lambda session: rows.under_way(session, caller))

    async def get(self, caller: Caller, id: str) -> Arrival:
        """One of the caller's; raises NotFound."""
        return await self._database.look(lambda session: rows.one(session, caller, id))

    async def wait(self, caller: Caller, id: str, seconds: float) -> Arrival:
        """One of the caller's when it has ended, or as it is after `seconds`; raises NotFound."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            arrival = await self.get(caller, id)
            left = deadline - asyncio.get_running_loop().time()
            if arrival.stage not in rows.OPEN or left <= 0:
                return arrival
            await asyncio.sleep(min(left, LOOK_AGAIN_SECONDS))  # another server may be at it

    async def take(
        self, caller: Caller, id: str, file: str, headers: Mapping[str, str], pieces: AsyncIterator[bytes]
    ) -> Arrival:
        """Take one part; durable on return. Raises InvalidRequest, NotFound, Misplaced, Conflict, TooLarge."""
        offset, digest = offset_in(headers), digest_in(headers)
        room = rows.expecting(await self.get(caller, id), file, offset)
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > room:
            raise TooLarge(f"the part is longer than the {room} bytes that are still to come")
        part = f"{offset}-{secrets.token_hex(8)}"
        try:
            async with scratch_of(self._store) as folder:
                size = await receive(pieces, folder / "part", digest, room)
                await asyncio.to_thread(self._store.parts.keep, id, part, folder / "part")
        except OSError as error:
            raise Unavailable(f"the part could not be stored: {error.strerror}", code="store_unavailable") from error
        try:
            return await self._database.run(
                lambda session: rows.add_part(session, caller, id, file, part, offset, size)
            )
        except (Conflict, NotFound):  # another request was quicker; what it brought counts
            await asyncio.to_thread(self._store.parts.drop, id, [part])
            raise

    async def complete(self, caller: Caller, id: str) -> Arrival:
        """Make a revision of it; asked again, the answer is the same. Raises Conflict while something is missing, and
        what AdapterService.upload raises; what is wrong with the bytes ends the upload."""
        arrival = await self.get(caller, id)
        if arrival.stage is Stage.COMPLETE:
            return arrival
        if arrival.stage is not Stage.RECEIVING:
            raise Conflict(f"upload {id} is {arrival.stage.value}", code="upload_closed")
        rows.check_whole(arrival)
        try:
            await self._upload(caller, arrival)
        except (InvalidRequest, TooLarge) as error:
            wrong = error
            await self._database.run(lambda session: rows.fail(session, id, wrong))
            await asyncio.to_thread(self._store.parts.drop, id)
            raise
        except Unavailable:  # its parts are gone, if another request has completed it at the same time
            if (await self.get(caller, id)).stage is not Stage.COMPLETE:
                raise
        await asyncio.to_thread(self._store.parts.drop, id)
        return await self.get(caller, id)

    async def abort(self, caller: Caller, id: str) -> None:
        """Forget it and its bytes; raises NotFound."""
        await self._database.run(lambda session: rows.remove(session, caller, id))
        await asyncio.to_thread(self._store.parts.drop, id)

    async def tend(self) -> None:
        """Forget what has expired, remove parts that are not needed, and go on with what nobody is fetching."""
        expired = await self._database.run(rows.expire)
        present = await asyncio.to_thread(self._store.parts.uploads)  # before the rows: a part never comes first
        needed = await self._database.look(rows.receiving)
        for upload in set(present) - needed:
            await asyncio.to_thread(self._store.parts.drop, upload)
            log.info(event("upload_removed", upload=upload, expired=expired))
        await self._fetching.go_on()

    async def start(self) -> None:
        """Clear up after an earlier life, and go on tending in the background."""
        if not self._is_shared:
            await self._database.run(rows.let_go)
        await self.tend()
        self._tending.start(self._forever())

    def stop(self) -> None:
        """End what `start` began; what is being fetched is taken up by another server, or the next start."""
        self._tending.cancel()
        self._fetching.stop()

    async def _upload(self, caller: Caller, arrival: Arrival) -> None:
        async with scratch_of(self._store) as folder:
            contents = joined(self._store.parts, arrival.id, arrival.files, folder, self._max_bytes)
            await self._service.upload(
                caller,
                arrival.name,
                contents,
                Particulars(**arrival.fields),
                also=lambda session, revision: rows.complete(session, arrival.id, revision),
            )

    async def _forever(self) -> None:
        for turn in count(1):
            await asyncio.sleep(TEND_SECONDS)
            try:
                await self.tend()
                if turn % SWEEP_EVERY == 0:
                    await asyncio.to_thread(self._store.sweep)  # after other servers, which may have died
            except Unavailable as error:
                log.error(event("uploads_not_tended", error=error, again_in=f"{TEND_SECONDS:g}s"))
