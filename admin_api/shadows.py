"""Shadows: a copy of a request, answered once more by another revision. Nobody sees the answer and nobody pays for it.

It begins when the real answer has ended, runs as background work, and is never waited for. Where copies would pile up
they are dropped, and counted. What is compared are greedy answers: up to the first difference they are equal, and what
follows it says nothing any more.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from itertools import count, takewhile
from typing import Any, cast

from ..core.errors import ArilError
from ..core.log import event, get_logger
from ..core.metrics import ADAPTERS, adapter_counter, adapter_histogram
from ..engine.client import EngineClient
from ..engine.metering import Outcome, Work
from ..engine.params import SamplingParams
from ..engine.request import BACKGROUND, Chunk
from ..lora.adapter import AdapterRef
from .tasks import Tasks

REQUESTS = adapter_counter("shadow_requests", "Copies of requests: answered, failed, or dropped", ["result"])
TOKENS = adapter_counter("shadow_tokens", "Tokens of the answers of shadows")
COMPARED = adapter_counter("shadow_compared_tokens", "Tokens of greedy answers, of whichever of the two was longer")
EQUAL = adapter_counter("shadow_equal_tokens", "Those of them that came before the first difference")
SECONDS = adapter_histogram("shadow_seconds", "From a shadow's start to its end")
FIRST_SECONDS = adapter_histogram("shadow_time_to_first_token_seconds", "From a shadow's start to its first token")
AT_ONCE = 2  # shadows in the engine
MOST_WAITING = 32  # copies that wait for it
MOST_REPORTS = 1000  # revisions whose reports are kept, of those that were shadowed last

log = get_logger(__name__)


@dataclass(slots=True)
class Report:
    """What has come of one revision's shadows in this process."""

    answered: int = 0
    failed: int = 0
    dropped: int = 0
    tokens: int = 0
    compared_tokens: int = 0
    equal_tokens: int = 0
    seconds: float = 0.0

    @property
    def equal_share(self) -> float | None:
        """Of the greedy tokens, how many were the same."""
        return self.equal_tokens / self.compared_tokens if self.compared_tokens else None

    def said(self) -> dict[str, Any]:
        """As it is shown."""
        return asdict(self) | {"equal_share": self.equal_share}


class Shadows:
    """Implements engine.metering.Observer. Owner of what waits to be answered once more."""

    def __init__(
        self,
        engine: EngineClient,
        load: Callable[[AdapterRef], Awaitable[None]],
        *,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """`load` lets the engine use an adapter."""
        self._engine = engine
        self._load = load
        self._most = most_waiting
        self._waiting = 0
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._tasks = Tasks()
        self._numbers = count()
        self._reports: OrderedDict[AdapterRef, Report] = OrderedDict()

    def ended(self, work: Work, outcome: Outcome) -> None:
        """Run it again under its shadow, if it has one and was answered."""
        ref = work.resolution.shadow
        if ref is None or outcome.error is not None or outcome.outputs is None:
            return
        for at, (prompt, params) in enumerate(zip(work.prompts, work.params, strict=True)):
            if self._waiting >= self._most:
                self._tell(ref, "dropped").dropped += 1
                continue
            self._waiting += 1
            real = outcome.outputs.get((at, 0), ()) if params.greedy else None
            self._tasks.start(self._answer(ref, prompt, params, real))

    def report(self, ref: AdapterRef) -> Report | None:
        """What has come of the shadows of `ref` here."""
        return self._reports.get(ref)

    def close(self) -> None:
        """Drop what waits and what runs."""
        self._tasks.cancel()

    async def _answer(
        self, ref: AdapterRef, prompt: Sequence[int], params: SamplingParams, real: Sequence[int] | None
    ) -> None:
        try:
            async with self._turns:
                await self._load(ref)
                tokens = await self._generate(ref, prompt, _copied(params))
        except ArilError as error:
            log.warning(event("shadow_failed", adapter=ref.name, revision=ref.revision, error=error))
            self._tell(ref, "failed").failed += 1
        else:
            report = self._tell(ref, "answered")
            report.answered += 1
            report.tokens += len(tokens)
            TOKENS.labels(ADAPTERS.label(ref.name)).inc(len(tokens))
            if real is not None:
                self._compare(ref, report, tokens, real)
        finally:
            self._waiting -= 1

    async def _generate(self, ref: AdapterRef, prompt: Sequence[int], params: SamplingParams) -> list[int]:
        began, label, tokens = time.perf_counter(), ADAPTERS.label(ref.name), list[int]()
        chunks = self._engine.generate(
            f"shadow-{next(self._numbers)}", prompt, params, adapter=ref, priority=BACKGROUND
        )
        async with aclosing(cast(AsyncGenerator[Chunk, None], chunks)):
            async for chunk in chunks:
                if chunk.finish_reason in ("error", "abort"):
                    raise chunk.error if isinstance(chunk.error, ArilError) else ArilError("the engine failed on it")
                if chunk.token_ids and not tokens:
                    FIRST_SECONDS.labels(label).observe(time.perf_counter() - began)
                tokens += chunk.token_ids
        SECONDS.labels(label).observe(time.perf_counter() - began)
        self._report(ref).seconds += time.perf_counter() - began
        return tokens

    def _compare(self, ref: AdapterRef, report: Report, tokens: Sequence[int], real: Sequence[int]) -> None:
        equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tokens, real, strict=False)))
        compared, label = max(len(tokens), len(real)), ADAPTERS.label(ref.name)
        report.equal_tokens += equal
        report.compared_tokens += compared
        EQUAL.labels(label).inc(equal)
        COMPARED.labels(label).inc(compared)

    def _tell(self, ref: AdapterRef, result: str) -> Report:
        REQUESTS.labels(ADAPTERS.label(ref.name), result).inc()
        return self._report(ref)

    def _report(self, ref: AdapterRef) -> Report:
        report = self._reports.setdefault(ref, Report())
        self._reports.move_to_end(ref)
        if len(self._reports) > MOST_REPORTS:
            self._reports.popitem(last=False)
        return report


def _copied(params: SamplingParams) -> SamplingParams:
    """Those of the copy: one choice, found among as many beams as the real one."""
    beams = params.num_beams if params.use_beam_search else None
    return replace(params, n=1, best_of=beams, logprobs=None, prompt_logprobs=None)
