"""Which adapters the engine has been asked to hold; the only caller of its load and unload.

Loading tells the engine no more than a name: the gate has looked at the bytes, and the engine reads them when a request
needs them. So an adapter is loaded when it is first asked for, and stays until its revision is gone.
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
        self._coming: dict[AdapterRef, asyncio.Task[None]] = {}
        self._leaving: dict[asyncio.Task[None], AdapterRef] = {}

    def __iter__(self) -> Iterator[AdapterRef]:
        return iter(tuple(self._held))

    def holds(self, ref: AdapterRef) -> bool:
        """Whether requests can use `ref` at once."""
        return ref in self._held

    def digests(self) -> Iterator[str]:
        """The bytes that the engine may still read."""
        return (ref.digest for ref in (*self._held, *self._coming, *self._leaving.values()))

    async def load(self, ref: AdapterRef) -> None:
        """Make `ref` usable, also when it is leaving; raises InvalidAdapter or NotFound."""
        if ref not in self._held:
            task = self._coming.get(ref)
            if task is None:
                task = self._coming[ref] = asyncio.get_running_loop().create_task(self._load(ref))
            await asyncio.shield(task)

    def leave(self, ref: AdapterRef) -> asyncio.Task[None]:
        """Take no more requests for `ref`; the task ends when the last has ended and its memory is free."""
        self._held.discard(ref)
        task = asyncio.get_running_loop().create_task(self._engine.unload_adapter(ref))
        self._leaving[task] = ref
        task.add_done_callback(self._leaving.pop)
        return task

    def leaving(self, name: str) -> list[asyncio.Task[None]]:
        """Those of that name that have not left yet."""
        return [task for task, ref in self._leaving.items() if ref.name == name]

    def cancel(self) -> None:
        """Wait for nobody any more; the process ends."""
        for task in (*self._coming.values(), *self._leaving):
            task.cancel()

    async def _load(self, ref: AdapterRef) -> None:
        try:
            await self._engine.load_adapter(ref)
            self._held.add(ref)
        finally:
            del self._coming[ref]
