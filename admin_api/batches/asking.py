"""Has lines answered, several at once, for as long as it takes: "not now" is no answer to a line, but a reason to wait.

Over a limit of its key, a line waits as the server says and asks again; so it does where the server is full, or without
its engine. It stops where whoever asks may not ask any more.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from ...core.answering import Answer, Answerer
from ...core.batch_lines import Line, Reply
from ...core.callers import Caller

LONGEST_PAUSE = 30.0  # seconds between two tries where the server does not say how long
TRIES_FOR_A_MODEL = 6  # where the server says that it cannot serve this model; another line's it may


class Asker:
    """The lines of one batch. `room` is shared with other batches: as many lines as it has are with the server."""

    def __init__(
        self,
        answerer: Answerer,
        caller: Callable[[], Caller],
        keep: Callable[[Reply], Awaitable[None]],
        *,
        room: asyncio.Semaphore,
        at_once: int,
    ) -> None:
        """`caller` says who asks, as of now, and raises when nobody may; `keep` makes a reply durable."""
        self._answerer = answerer
        self._caller = caller
        self._keep = keep
        self._room = room
        self._mine = asyncio.Semaphore(at_once)
        self._not_before = 0.0

    async def run(self, lines: AsyncIterator[Line]) -> None:
        """Have all `lines` answered. What `caller` or `keep` raises ends it, and the lines that are being answered."""
        try:
            async with asyncio.TaskGroup() as tasks:
                async for line in lines:
                    await self._mine.acquire()
                    tasks.create_task(self._one(line)).add_done_callback(lambda _: self._mine.release())
        except ExceptionGroup as group:
            raise _first(group) from None

    async def _one(self, line: Line) -> None:
        tries = 0
        while True:
            await self._calm()
            async with self._room:
                answer = await self._answerer.answer(self._caller(), line.url, line.asked())
            tries += 1
            if not answer.is_not_now or (tries >= TRIES_FOR_A_MODEL and _blames_the_model(answer)):
                break
            pause = min(2.0**tries, LONGEST_PAUSE) if answer.status != 429 else 1.0
            self._not_before = max(self._not_before, time.monotonic() + max(pause, answer.retry_after or 0.0))
        await self._keep(Reply.of(line, answer))

    async def _calm(self) -> None:
        """Wait until the server may be asked again."""
        while (pause := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(pause)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """The first thing that failed; whatever else did, did so for its sake."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _blames_the_model(answer: Answer) -> bool:
    said: Any = None
    with suppress(ValueError):
        said = json.loads(answer.body)
    error = said.get("error") if isinstance(said, dict) else None
    return isinstance(error, dict) and error.get("param") == "model"
