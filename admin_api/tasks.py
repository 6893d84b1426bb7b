"""Small pieces of asyncio: a lock per name, tasks in the background, waiting without cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from ..core.log import event, get_logger

log = get_logger(__name__)


class Turns:
    """One lock per name, for as long as somebody wants it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, name: str) -> AsyncIterator[None]:
        """Wait for the others of the same name, then hold it."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            yield


class Tasks:
    """Work that nobody waits for. A failure is logged; whoever needs the result looks at the world again later."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Stop all of it."""
        for task in self._running:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error(event("background_task_failed", task=task.get_coro()), exc_info=task.exception())


async def all_of(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for `tasks`, which go on if the waiter is cancelled; raises what the first of them raised."""
    waiting = list(tasks)
    if waiting:
        await asyncio.wait(waiting)
    for task in waiting:
        task.result()
