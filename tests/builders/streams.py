"""An engine behind an event loop, and its streams read to their end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aril.core.errors import NotFound
from aril.engine.aio import AsyncEngine
from aril.engine.engine import Engine
from aril.engine.params import SamplingParams
from aril.lora.adapter import AdapterRef

from builders.engines import Told, make_config

PROMPT = [5, 6, 7, 8]


@asynccontextmanager
async def served(
    folder: Path, places: dict[AdapterRef, Path] | None = None, **flags: object
) -> AsyncIterator[AsyncEngine]:
    """An AsyncEngine that knows where adapters lie, but has loaded none."""
    homes = places or {}

    def home(ref: AdapterRef) -> Path:
        if ref not in homes:
            raise NotFound(f"no adapter {ref.name!r}")
        return homes[ref]

    engine = AsyncEngine(Engine(make_config(folder, **flags), adapter_folder=home))
    try:
        yield engine
    finally:
        await engine.close()


async def read(engine: AsyncEngine, id_: str, params: SamplingParams, adapter: AdapterRef | None = None) -> Told:
    """What one client was told, from the first chunk to the last."""
    told = Told()
    async for chunk in engine.generate(id_, PROMPT, params, adapter=adapter):
        told.take(chunk)
    return told
