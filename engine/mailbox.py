"""What one client has still to read: chunks by choice, merged while the client is slow. Lives on the event loop."""

from __future__ import annotations

import asyncio

from .request import Chunk


class Mailbox:
    """One reader. `open_choices` counts the choices that have not ended."""

    def __init__(self, num_choices: int) -> None:
        self.open_choices = num_choices
        self._unread: dict[int, Chunk] = {}  # by choice, in the order of arrival
        self._failure: Exception | None = None
        self._news = asyncio.Event()

    def put(self, chunk: Chunk) -> None:
        """One more chunk."""
        unread = self._unread.get(chunk.index)
        self._unread[chunk.index] = chunk if unread is None else merged(unread, chunk)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """Nothing more will come: the reader gets `error`, after what it has not read."""
        self._failure = error
        self._news.set()

    async def take(self) -> list[Chunk]:
        """All that is unread, as soon as there is any. Raises what `fail` was given."""
        await self._news.wait()
        self._news.clear()
        chunks = list(self._unread.values())
        self._unread.clear()
        self.open_choices -= sum(chunk.finish_reason is not None for chunk in chunks)
        if self._failure is not None:
            if not chunks:
                raise self._failure
            self._news.set()
        return chunks


def merged(first: Chunk, then: Chunk) -> Chunk:
    """Both as one: `then`, which knows the newest counts, with what `first` brought."""
    then.token_ids = first.token_ids + then.token_ids
    then.text = first.text + then.text
    then.prompt_logprobs = first.prompt_logprobs or then.prompt_logprobs
    then.prompt_logits = first.prompt_logits or then.prompt_logits
    if first.logprobs is not None:
        then.logprobs = first.logprobs + (then.logprobs or [])
    return then
