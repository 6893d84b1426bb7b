"""Has lines answered, several at once, for as long as it takes: "not now" is no answer to a line, but a reason to wait.

Over a limit of its key, a line waits as the server says and asks again; so it does where the server is full. All ends
where whoever asks may not ask any more, and where the engine is dead: on another server it may live.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from ...core.answering import Answer, Answerer
from ...core.batch_lines import Line, Reply
from ...core.callers import Caller
from ...core.errors import EngineDead

RATE_LIMITED = 429
SHORTEST_PAUSE = 1.0  # seconds between two tries where the server does not say how long
LONGEST_PAUSE = 30.0  # where it says that it is full, again and again
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
                asked = await asyncio.to_thread(line.asked)
                answer = await self._answerer.answer(self._caller(), line.url, asked)
            tries += 1
            if not answer.is_not_now or (tries >= TRIES_FOR_A_MODEL and answer.error.get("param") == "model"):
                break
            self._rest(answer, tries)
        await self._keep(await asyncio.to_thread(Reply.of, line, answer))

    def _rest(self, answer: Answer, tries: int) -> None:
        """Nobody asks for a while; raises EngineDead where nobody needs to ask again."""
        if answer.error.get("code") == EngineDead.code:
            raise EngineDead(str(answer.error.get("message")))
        asked = SHORTEST_PAUSE if answer.retry_after is None else answer.retry_after
        backoff = 0.0 if answer.status == RATE_LIMITED else min(SHORTEST_PAUSE * 2.0**tries, LONGEST_PAUSE)
        self._not_before = max(self._not_before, time.monotonic() + max(asked, backoff))

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
