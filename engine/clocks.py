"""When things happened to a request, and the histograms that tell of it. Every request that somebody waits for counts,
whoever sent it.
"""

from __future__ import annotations

import time

from ..core.metrics import histogram
from .request import Chunk, Request

FIRST_TOKEN_SECONDS = histogram("time_to_first_token_seconds", "From a request's arrival to its first token")
TOKEN_SECONDS = histogram("time_per_output_token_seconds", "Mean time between the tokens of a choice, by choice")
GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
GAP_SECONDS = histogram("inter_token_seconds", "Between two tokens of a choice", buckets=GAP_BUCKETS)
REQUEST_SECONDS = histogram("request_seconds", "From a request's arrival to the end of each of its choices")
QUEUE_SECONDS = histogram("request_queue_seconds", "From a request's arrival to its first step")
PREFILL_SECONDS = histogram("request_prefill_seconds", "From a request's first step to its first token")
DECODE_SECONDS = histogram("request_decode_seconds", "From the first to the last token of a choice")
LENGTHS = tuple(float(1 << power) for power in range(0, 18))
PROMPT_LENGTH = histogram("request_prompt_tokens", "Tokens of a request's prompt", buckets=LENGTHS)
OUTPUT_LENGTH = histogram("request_generation_tokens", "Tokens of a choice", buckets=LENGTHS)


def clock_of(request: Request) -> Clock:
    """One that starts now. Work that nobody waits for takes as long as others make it: that says nothing."""
    return Untold() if request.is_background else Clock(request)


class Clock:
    """Of one request, from its arrival on."""

    __slots__ = ("_arrival", "_first", "_last", "_start", "queued")

    def __init__(self, request: Request) -> None:
        PROMPT_LENGTH.observe(len(request.prompt))
        self.queued = 0.0  # seconds from its arrival to its first step
        self._arrival = time.perf_counter()
        self._start: float | None = None
        self._first: dict[int, float] = {}  # by choice
        self._last: dict[int, float] = {}

    def start(self) -> None:
        """It takes part in a step; only the first time counts."""
        if self._start is None:
            self._start = time.perf_counter()
            self.queued = self._start - self._arrival
            QUEUE_SECONDS.observe(self.queued)

    def count(self, chunk: Chunk) -> None:
        """Tokens of a choice have come."""
        now, last = time.perf_counter(), self._last.get(chunk.index)
        if last is not None:
            GAP_SECONDS.observe((now - last) / len(chunk.token_ids))
        else:
            FIRST_TOKEN_SECONDS.observe(now - self._arrival)
            self._first[chunk.index] = now
            if self._start is not None and len(self._first) == 1:
                PREFILL_SECONDS.observe(now - self._start)
        self._last[chunk.index] = now

    def end(self, chunk: Chunk) -> None:
        """A choice has ended."""
        now, first = time.perf_counter(), self._first.get(chunk.index)
        REQUEST_SECONDS.observe(now - self._arrival)
        OUTPUT_LENGTH.observe(chunk.num_output)
        if first is not None:
            DECODE_SECONDS.observe(now - first)
            if chunk.num_output > 1:
                TOKEN_SECONDS.observe((now - first) / (chunk.num_output - 1))


class Untold(Clock):
    """Tells nobody."""

    def __init__(self) -> None:
        self.queued = 0.0

    def start(self) -> None:
        pass

    def count(self, chunk: Chunk) -> None:
        pass

    def end(self, chunk: Chunk) -> None:
        pass
