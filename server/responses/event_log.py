"""The events of a response that is made in the background, for any number of readers, who may come late.

The newest are kept, up to a bound in bytes: whoever wants older ones hears what there still is. The last event of a
response has the whole of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from ...core.errors import InvalidRequest

MOST_BYTES = 1 << 20  # of one response: some 4,000 tokens, with the likeliest ones of each some 400


class Log:
    """Numbered events. Lives on the event loop."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._events = deque[bytes]()
        self._first = 0  # the number of the oldest that is kept
        self._size = 0
        self._has_ended = False
        self._news = asyncio.Event()

    def add(self, event: bytes) -> None:
        """The next one."""
        self._events.append(event)
        self._size += len(event)
        while self._size > self._most and len(self._events) > 1:  # whoever keeps up hears the newest, however long
            self._size -= len(self._events.popleft())
            self._first += 1
        self._wake()

    def end(self) -> None:
        """No more will come."""
        self._has_ended = True
        self._wake()

    async def read(self, first: int = 0) -> AsyncGenerator[bytes, None]:
        """All events from the one of that number on, as they come. Raises InvalidRequest where the next is not kept."""
        at = first
        while True:
            news = self._news
            while at < self._first + len(self._events):
                if at < self._first:
                    raise self._gone()
                yield self._events[at - self._first]
                at += 1
            if self._has_ended:
                return
            if news is self._news:
                await news.wait()

    def _gone(self) -> InvalidRequest:
        return InvalidRequest(
            f"starting_after: this response is long, and its events before number {self._first} are not kept any more; "
            f"hear those that are with starting_after={self._first - 1}, or get the response without stream",
            param="starting_after",
            code="events_not_kept",
        )

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
