"""Work that would hold up the event loop, and with it all streams, done beside it.

On a thread, other threads get their turns every few milliseconds, but for calls into C that let none in: those are
bounded (core/weight.py) or written in pieces (server/writing.py), and one of them is made at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Bytes of a body. Its worst content takes 150 ns a byte to read and as much again to look through: up to here less than
# a step of the engine on the loop, where a thread would cost each small request a tenth of a millisecond or more.
LARGE = 1 << 15
LONG = 1 << 20  # bytes of a body whose text may take a second to tokenise
MOST_LONG = 2  # of those at a time, so that threads are left for everybody else


class Aside:
    """The threads of one application, but for those that the event loop itself has for short work."""

    def __init__(self) -> None:
        self._reader = ThreadPoolExecutor(1, "aril-reader")
        self._long = ThreadPoolExecutor(MOST_LONG, "aril-long")

    async def read(self, size: int, read: Callable[[], T]) -> T:
        """What `read` makes of a body of `size` bytes; here where it is small, else when no other is read."""
        if size <= LARGE:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._reader, read)

    async def work(self, size: int, work: Callable[[], T]) -> T:
        """What comes of `work` for a body of `size` bytes, on a thread; whoever has sent much waits for its like."""
        if size <= LONG:
            return await asyncio.to_thread(work)
        return await asyncio.get_running_loop().run_in_executor(self._long, work)

    async def short(self, size: int, work: Callable[[], T]) -> T:
        """The same, but here where the body is small."""
        return work() if size <= LARGE else await self.work(size, work)
