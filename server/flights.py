"""Flights: the generations under way. How much may be held for them, how long one may take, how others end them.

A choice counts from when its request is let in until it has ended, the tokens of a prompt until its answer begins. Of a
beam search each beam is one, for they are what is computed.
Work that nobody waits for has counts of its own, and all the time there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from types import TracebackType

from ..core.errors import ArilError, Overloaded, TimedOut
from ..core.metrics import counter
from ..engine.metering import Work
from ..engine.request import BACKGROUND, Chunk

Stream = AsyncGenerator[tuple[int, Chunk], None]  # (which prompt, news of one of its choices)

TURNED_AWAY = counter("requests_turned_away", "Requests that found the queue full, by what was", ("bound",))
LATE = counter("requests_timed_out", "Requests that took longer than one may")
for _bound in ("choices", "tokens"):
    TURNED_AWAY.labels(_bound)  # dashboards want to see the zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What may be held at once, and for how long; None is no bound. A request that comes alone is always let in."""

    choices: int | None = None  # that run or wait
    tokens: int | None = None  # of prompts whose answer has not begun
    seconds: float | None = None  # of one request


@dataclass(slots=True)
class _Held:
    choices: int = 0
    tokens: int = 0


class Flights:
    """Owner of the list. Lives on the event loop."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.closed = False  # the server ends: nothing new is let in
        self._under_way: set[Flight] = set()
        self._held = {False: _Held(), True: _Held()}  # by whether it is background work

    @property
    def num_under_way(self) -> int:
        """Generations that have not ended."""
        return len(self._under_way)

    def check(self, priority: int) -> None:
        """Raises Overloaded where not one choice more has room: before anything is done for a request."""
        self._check(self._held[priority >= BACKGROUND], 1, 1)

    def begin(self, work: Work, priority: int = 0) -> Flight:
        """Let `work` in; the flight is a context, and ends with it. Raises Overloaded."""
        held = self._held[priority >= BACKGROUND]
        flight = Flight(self, work, held)
        self._check(held, flight.num_choices, flight.num_tokens)
        self._under_way.add(flight)
        held.choices += flight.num_choices
        held.tokens += flight.num_tokens
        if self.bounds.seconds is not None and priority < BACKGROUND:
            flight.end_in(self.bounds.seconds)
        return flight

    def close(self) -> None:
        """Let nothing in any more; what is under way goes on."""
        self.closed = True

    def stop(self, error: ArilError) -> None:
        """End all of them; their clients get `error`."""
        for flight in list(self._under_way):
            flight.stop(error)

    def forget(self, flight: Flight) -> None:
        """It has ended."""
        self._under_way.discard(flight)

    def _check(self, held: _Held, choices: int, tokens: int) -> None:
        if not held.choices:
            return
        if self.bounds.choices is not None and held.choices + choices > self.bounds.choices:
            TURNED_AWAY.labels("choices").inc()
            raise Overloaded(
                f"the queue is full: {held.choices} answers are written or wait, {choices} more are asked for, and the "
                f"server holds {self.bounds.choices}; try again soon"
            )
        if self.bounds.tokens is not None and held.tokens + tokens > self.bounds.tokens:
            TURNED_AWAY.labels("tokens").inc()
            raise Overloaded(
                f"the queue is full: prompts of {held.tokens} tokens wait for their answer, {tokens} more are asked "
                f"for, and the server holds {self.bounds.tokens}; try again soon"
            )


@dataclass(slots=True, eq=False)
class Flight:
    """One generation under way: a context that hands back what it holds."""

    _flights: Flights
    _work: Work
    _held: _Held
    _waiting: dict[int, int] = field(init=False)  # prompt -> its tokens, until its answer begins
    _open: int = field(init=False)  # choices that have not ended
    _error: ArilError | None = None  # why it was stopped
    _stream: Stream | None = None
    _reader: asyncio.Task[object] | None = None  # whoever waits for the next chunk
    _timer: asyncio.TimerHandle | None = None
    _closing: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._waiting = {at: len(prompt) for at, prompt in enumerate(self._work.prompts)}
        self._open = sum(params.num_rows for params in self._work.params)

    @property
    def num_choices(self) -> int:
        """Choices that it holds places for."""
        return self._open

    @property
    def num_tokens(self) -> int:
        """Tokens of prompts that wait."""
        return sum(self._waiting.values())

    def __enter__(self) -> Flight:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._flights.forget(self)
        self._held.choices -= self._open
        self._held.tokens -= self.num_tokens
        if self._timer is not None:
            self._timer.cancel()

    @property
    def deadline(self) -> float | None:
        """When it is stopped, by the loop's clock."""
        return None if self._timer is None else self._timer.when()

    def end_in(self, seconds: float) -> None:
        """Stop it then, if it has not ended."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._be_late, seconds)

    async def follow(self, stream: Stream) -> Stream:
        """What `stream` brings, until it ends or this flight is stopped."""
        self._stream = stream
        while True:
            if self._error is not None:
                raise self._error
            self._reader = asyncio.current_task()
            try:
                prompt_at, chunk = await anext(stream)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                if self._error is None or (self._reader is not None and self._reader.uncancel()):
                    raise  # not by us, or not by us alone
                raise self._error from None
            finally:
                self._reader = None
            self._note(prompt_at, chunk)
            yield prompt_at, chunk

    def stop(self, error: ArilError) -> None:
        """End it now; its reader gets `error`."""
        if self._error is not None:
            return
        self._error = error
        if self._reader is not None:
            self._reader.cancel()
        elif self._stream is not None:  # its client is slow to read; the engine need not wait for that
            self._closing = asyncio.ensure_future(self._stream.aclose())

    def _note(self, prompt_at: int, chunk: Chunk) -> None:
        self._held.tokens -= self._waiting.pop(prompt_at, 0)
        if chunk.finish_reason is not None:
            ended = self._ended_by(prompt_at, chunk.index)
            self._open -= ended
            self._held.choices -= ended

    def _ended_by(self, prompt_at: int, index: int) -> int:
        """How many places the end of one choice frees; the beams that nobody is told of end with the best one."""
        params = self._work.params[prompt_at]
        return 1 + params.num_rows - params.n if index == 0 else 1

    def _be_late(self, seconds: float) -> None:
        LATE.inc()
        self.stop(TimedOut(f"the answer was not complete after {seconds:g} s, the most a request may take here"))
