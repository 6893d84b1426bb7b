"""Asks the engine without standing in anybody's way: as work that nobody waits for, unless that never gets its turn."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import cast

from torch import Tensor

from ...engine.client import EngineClient
from ...engine.params import SamplingParams
from ...engine.request import BACKGROUND, Chunk
from ...lora.adapter import AdapterRef

ORDINARY = 0
PATIENCE = 10.0  # seconds that an engine under load may leave a check waiting; then it is a request like others
CROWDED = 60.0  # seconds that later ones are so at once: who waits for an upload waits for several of them


@dataclass(slots=True)
class Answer:
    """What came of one prompt."""

    text: str = ""
    logits: list[Tensor] = field(default_factory=list)  # pieces of [n - 1, vocab] float32

    def take(self, chunk: Chunk) -> None:
        """One more chunk; raises its error."""
        if chunk.error is not None:
            raise chunk.error
        self.text += chunk.text
        self.logits += chunk.prompt_logits or []


class Asker:
    """Runs prompts on one engine. Raises what the engine raises."""

    def __init__(self, engine: EngineClient, *, patience: float = PATIENCE) -> None:
        self.engine = engine
        self._patience = patience
        self._crowded_until = 0.0

    async def ask(self, prompt: Sequence[int], params: SamplingParams, ref: AdapterRef | None) -> Answer:
        """The answer to `prompt`."""
        if time.monotonic() >= self._crowded_until:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    return await self._ask(prompt, params, ref, BACKGROUND)
            self._crowded_until = time.monotonic() + CROWDED
        return await self._ask(prompt, params, ref, ORDINARY)

    async def _ask(
        self, prompt: Sequence[int], params: SamplingParams, ref: AdapterRef | None, priority: int
    ) -> Answer:
        answer = Answer()
        chunks = self.engine.generate(f"gate-{uuid.uuid4().hex}", prompt, params, adapter=ref, priority=priority)
        async with aclosing(cast(AsyncGenerator[Chunk, None], chunks)):
            async for chunk in chunks:
                answer.take(chunk)
        return answer
