"""Desired against actual: what the registry says, against store, engine and catalog. At start and on a timer.

The only place that repairs: whatever a crash, another process on the same database, or a failed load left behind.
"""

from __future__ import annotations

import asyncio

from ..core.errors import ArilError
from ..core.log import event, get_logger
from . import repo
from .adapters import AdapterService
from .db import Database
from .tasks import Tasks

log = get_logger(__name__)
NUM_AT_ONCE = 8  # adapters that converge together; more would only queue at the disk


class Reconciler:
    """Repeats `once` until it is stopped."""

    def __init__(self, service: AdapterService, database: Database, seconds: float) -> None:
        self._service = service
        self._database = database
        self._seconds = seconds
        self._timer = Tasks()

    async def once(self) -> int:
        """Converge every adapter that differs, and drop the bytes that nothing needs; returns how many differed."""
        entries = await self._database.run(repo.active_entries)
        desired = {entry.name: entry for entry in entries}
        names = {*desired, *self._service.catalog.names()}
        differing = [name for name in sorted(names) if self._service.differs(name, desired.get(name))]
        at_once = asyncio.Semaphore(NUM_AT_ONCE)

        async def converge(name: str) -> None:
            async with at_once:
                await self._service.converge(name)

        await asyncio.gather(*(converge(name) for name in differing))
        await self._service.drop_unneeded()
        return len(differing)

    def start(self) -> None:
        """Go on in the background."""
        self._timer.start(self._forever())

    def stop(self) -> None:
        """End what `start` began."""
        self._timer.cancel()

    async def _forever(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self.once()
            except ArilError as error:
                log.error(event("reconcile_failed", error=error, again_in=f"{self._seconds:g}s"))
