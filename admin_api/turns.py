"""How many uploads of one tenant are received at once: each lies on this server's disk until it has been looked at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from ..core.errors import RateLimited

MOST = 4  # of a tenant: so often the largest upload is what it can take of the disk
WAIT_SECONDS = 20.0  # that one more waits for its turn, its bytes unread


class Turns:
    """Tenants in turns. One of them waits for itself alone."""

    def __init__(self, *, most: int = MOST, seconds: float = WAIT_SECONDS) -> None:
        self._most = most
        self._seconds = seconds
        self._rooms: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, tenant: str) -> AsyncIterator[None]:
        """A turn of `tenant`; raises RateLimited when none comes up in time."""
        room = self._rooms.setdefault(tenant, asyncio.Semaphore(self._most))
        try:
            async with asyncio.timeout(self._seconds):
                await room.acquire()
        except TimeoutError:
            message = (
                f"{self._most} uploads of the tenant {tenant!r} are being received, and more are not taken at once"
            )
            raise RateLimited(message, retry_after=self._seconds, code="too_many_uploads") from None
        try:
            yield
        finally:
            room.release()
