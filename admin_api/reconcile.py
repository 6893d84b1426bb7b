"""Desired against actual: what the registry says, against store, engine and catalog. At start and on a timer.

The only place that repairs: whatever a crash, another process on the same database, or a failed load left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ..core.errors import ArilError
from ..core.log import event, get_logger
from .adapters import AdapterService
from .db import Database
from .replies import forget_old
from .tasks import Tasks

log = get_logger(__name__)


class Reconciler:
    """Repeats `once` until it is stopped."""

    def __init__(
        self,
        service: AdapterService,
        database: Database,
        seconds: float,
        sweeps: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        """`sweeps` are what others do with their own tables from time to time."""
        self._sweeps = sweeps
        self._service = service
        self._database = database
        self._seconds = seconds
        self._timer = Tasks()

    async def once(self) -> None:
        """See everything anew, retire what is old, and drop the bytes and records that nothing needs."""
        await self._service.refresh_all()
        await self._service.retire_older()
        await self._service.drop_unneeded()
        await self._database.run(forget_old)
        for sweep in self._sweeps:
            await sweep()
        self._service.uploads.set()

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
            except Exception as error:  # whatever it is, the next time comes
                told = None if isinstance(error, ArilError) else error
                log.error(event("reconcile_failed", error=error, again_in=f"{self._seconds:g}s"), exc_info=told)
