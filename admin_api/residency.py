"""Which adapters the engine has been asked to hold; the only caller of its load and unload.

Its callers hold the turn of the adapter's name, so that a ref is never loaded and let go at the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ..engine.client import EngineClient
from ..lora.adapter import AdapterRef


class Residency:
    """The refs that are loaded, and those that leave once their last request has ended."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._held: set[AdapterRef] = set()
        self._leaving: dict[asyncio.Task[None], AdapterRef] = {}

    def of(self, name: str) -> list[AdapterRef]:
        """The loaded refs of one name: while a revision is being replaced, both."""
        return [ref for ref in self._held if ref.name == name]

    def digests(self) -> Iterator[str]:
        """The bytes that the engine may still read."""
        return (ref.digest for ref in (*self._held, *self._leaving.values()))

    async def load(self, ref: AdapterRef) -> None:
        """Make `ref` usable, also when it is leaving; raises InvalidAdapter or NotFound."""
        if ref not in self._held:
            await self._engine.load_adapter(ref)
            self._held.add(ref)

    def leave(self, ref: AdapterRef) -> asyncio.Task[None]:
        """Take no more requests for `ref`; the task ends when the last has ended and its memory is free."""
        self._held.discard(ref)
        task = asyncio.get_running_loop().create_task(self._engine.unload_adapter(ref))
        self._leaving[task] = ref
        task.add_done_callback(self._leaving.pop)
        return task

    def cancel(self) -> None:
        """Wait for nobody any more; the process ends."""
        for task in self._leaving:
            task.cancel()
