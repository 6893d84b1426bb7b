"""Small pieces of asyncio: waiting for news and for work, tasks in the background, waiting without cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from ..core.errors import ArilError
from ..core.log import event, get_logger

T = TypeVar("T")
log = get_logger(__name__)


class News:
    """Wakes those who wait for the next change of a thing."""

    def __init__(self) -> None:
        self._events: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    def next(self, subject: str) -> asyncio.Event:
        """Set at the next change of `subject`; get it before looking, then nothing is missed."""
        return self._events.setdefault(subject, asyncio.Event())

    def tell(self, subject: str) -> None:
        """`subject` has changed."""
        waiting = self._events.pop(subject, None)
        if waiting is not None:
            waiting.set()

    def tell_all(self) -> None:
        """Anything may have changed."""
        for subject in list(self._events):
            self.tell(subject)


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


async def seen_through(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises; who is cancelled meanwhile waits for its end all the same."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


async def found_or_woken(
    looking: Coroutine[Any, Any, T | None], woken: asyncio.Event, *, seconds: float, who: str
) -> T | None:
    """What `looking` finds; None after `seconds` without anything, or as soon as it is `woken`.

    Whatever goes wrong is logged as `who`'s, and is nothing found: the next look comes.
    """
    try:
        if (found := await looking) is not None:
            return found
    except Exception as error:
        told = None if isinstance(error, ArilError) else error
        log.error(event(f"{who}_cannot_look", error=error, again_in=f"{seconds:g}s"), exc_info=told)
    with suppress(TimeoutError):
        await asyncio.wait_for(woken.wait(), seconds)
    return None


async def first_of(*work: Coroutine[Any, Any, T]) -> T:
    """What the first to end returns or raises, of several at once the one named first; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
