"""What chat and completions do alike: start generations, merge them, add them up."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from ..core.errors import ArilError, DoesNotFit, InvalidAdapter, InvalidRequest, NotFound, Unavailable
from ..core.http_status import status_of
from ..engine.client import EngineClient
from ..engine.metering import Meter, Outcome, Work
from ..engine.request import Chunk, TokenLogprobs
from .deps import Face
from .flights import Flights, Stream
from .records import GONE

SPEAKER = "x-aril-adapter"  # the header that says which revision spoke


@dataclass(frozen=True, slots=True)
class Generation:
    """Everything needed to answer one request: who asked, and its prompts, each with its params, for one model."""

    id: str
    model: str  # as the caller named it
    work: Work
    priority: int = 0
    salt: str = ""  # of the cached prefixes that it may share
    created: int = field(default_factory=lambda: int(time.time()))
    headers: dict[str, str] = field(default_factory=dict)  # of the answer; complete once it begins

    @property
    def prompts(self) -> Sequence[Sequence[int]]:
        """Token ids."""
        return self.work.prompts

    @property
    def n(self) -> int:
        """Choices of each prompt."""
        return self.work.params[0].n

    def head(self, kind: str) -> dict[str, Any]:
        """The fields that every object of the answer begins with."""
        speaker = self.work.resolution.speaker
        said = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**said, "system_fingerprint": speaker}

    async def run(self, face: Face) -> Stream:
        """The chunks of all prompts, if the caller may have them now; closing it early aborts them."""
        record = face.record
        spoken = record.begin(self, face.engine.text.decode)
        try:
            async with aclosing(face.runs.run(self)) as stream:
                async for prompt_at, chunk in stream:
                    spoken.take(prompt_at, chunk)
                    yield prompt_at, chunk
            record.error = None
        except Exception as error:
            record.fail(error)
            raise


@dataclass(frozen=True, slots=True)
class Here:
    """Runs generations on the engine of this process, as its meter and its flights allow. Implements deps.Runs."""

    engine: EngineClient
    meter: Meter
    flights: Flights

    async def check(self, priority: int) -> None:
        """As the flights say."""
        self.flights.check(priority)

    async def run(self, generation: Generation) -> Stream:
        """Its chunks."""
        work = generation.work
        with self.flights.begin(work, generation.priority) as flight:
            permit, tally = self.meter.admit(work), Tally()
            generation.headers.update({SPEAKER: work.resolution.speaker, **permit.headers})
            try:
                async with aclosing(self._chunks(generation)) as stream, aclosing(flight.follow(stream)) as followed:
                    async for prompt_at, chunk in followed:
                        tally.count(prompt_at, chunk)
                        yield prompt_at, chunk
                tally.error = None
            except Exception as error:
                tally.fail(error)
                raise
            finally:
                permit.end(tally.outcome())

    def _chunks(self, asked: Generation) -> Stream:
        work, generate = asked.work, partial(self.engine.generate, priority=asked.priority, salt=asked.salt)
        generate = partial(generate, adapter=work.resolution.ref, owner=str(work.caller.tenant_id))
        each = enumerate(zip(work.prompts, work.params, strict=True))
        streams = [generate(f"{asked.id}-{at}", prompt, params) for at, (prompt, params) in each]
        return _checked(streams[0]) if len(streams) == 1 else _merged(streams)


def new_id(prefix: str) -> str:
    """An id that no other request has."""
    return f"{prefix}{uuid.uuid4().hex}"


@dataclass(slots=True)
class Usage:
    """Tokens so far, over all prompts and choices of a request."""

    _prompts: dict[int, tuple[int, int]] = field(default_factory=dict)
    _outputs: dict[tuple[int, int], int] = field(default_factory=dict)

    def count(self, prompt_at: int, chunk: Chunk) -> bool:
        """Take in what `chunk` says; whether it is the first of its choice."""
        is_first = (prompt_at, chunk.index) not in self._outputs
        self._prompts[prompt_at] = (chunk.num_prompt, chunk.num_cached)
        self._outputs[prompt_at, chunk.index] = chunk.num_output
        return is_first

    @property
    def num_tokens(self) -> int:
        """Of prompts and outputs together."""
        return sum(tokens for tokens, _ in self._prompts.values()) + sum(self._outputs.values())

    def shown(self, *, output: bool = True) -> dict[str, Any]:
        """The usage object; without `output` the tokens after the prompt do not count."""
        num_prompt = sum(tokens for tokens, _ in self._prompts.values())
        num_output = sum(self._outputs.values()) if output else 0
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": sum(cached for _, cached in self._prompts.values())},
        }


@dataclass(slots=True)
class Tally:
    """What a request has come to so far, for the books."""

    error: str | None = GONE  # until it is known how it ended
    fault: bool = False
    refused: bool = False
    _usage: Usage = field(default_factory=Usage)
    _outputs: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _began: float = field(default_factory=time.perf_counter)
    _first: float | None = None
    _last: dict[tuple[int, int], float] = field(default_factory=dict)  # when a choice's newest tokens came
    _gaps: list[float] = field(default_factory=list)

    def count(self, prompt_at: int, chunk: Chunk) -> None:
        """Take in what `chunk` says."""
        self._usage.count(prompt_at, chunk)
        if chunk.token_ids:
            choice = (prompt_at, chunk.index)
            self._time(choice, time.perf_counter(), len(chunk.token_ids))
            self._outputs.setdefault(choice, []).extend(chunk.token_ids)

    def _time(self, choice: tuple[int, int], now: float, num_tokens: int) -> None:
        if self._first is None:
            self._first = now - self._began
        if (last := self._last.get(choice)) is not None:
            self._gaps += [(now - last) / num_tokens] * num_tokens
        self._last[choice] = now

    def fail(self, error: Exception) -> None:
        """It ended with `error`: the caller's affair only if the caller could have asked for something better."""
        self.error = error.code if isinstance(error, ArilError) else ArilError.code
        self.fault = status_of(error) >= 500 or isinstance(error, InvalidAdapter | DoesNotFit)
        self.refused = status_of(error) < 500 and not self._usage.num_tokens

    def outcome(self) -> Outcome:
        """All of it."""
        shown = self._usage.shown()
        return Outcome(
            prompt_tokens=shown["prompt_tokens"],
            cached_tokens=shown["prompt_tokens_details"]["cached_tokens"],
            completion_tokens=shown["completion_tokens"],
            first_token_seconds=self._first,
            gaps=self._gaps,
            seconds=time.perf_counter() - self._began,
            error=self.error,
            fault=self.fault,
            refused=self.refused,
            outputs=self._outputs,
        )


@dataclass(slots=True)
class Choice:
    """One finished choice, put together from its chunks."""

    parts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.parts)

    def take(self, chunk: Chunk) -> None:
        """Append one chunk."""
        self.parts.append(chunk.text)
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs or ()
        self.finish_reason, self.stop_reason = chunk.finish_reason, chunk.stop_reason


@dataclass(slots=True)
class Collected:
    """What has come of an answer: the choices of each prompt, the scores of the prompts, and what it all cost."""

    choices: dict[tuple[int, int], Choice] = field(default_factory=dict)  # (prompt, index)
    prompt_logprobs: dict[int, list[TokenLogprobs | None]] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)

    @classmethod
    async def of(cls, stream: Stream) -> Collected:
        """Read `stream` to its end."""
        whole = cls()
        async with aclosing(stream):
            async for prompt_at, chunk in stream:
                whole.note(prompt_at, chunk)
                whole.choices.setdefault((prompt_at, chunk.index), Choice()).take(chunk)
        return whole

    def note(self, prompt_at: int, chunk: Chunk) -> bool:
        """Take in all of a chunk but its text; whether it is the first of its choice."""
        if chunk.prompt_logprobs is not None:
            self.prompt_logprobs[prompt_at] = chunk.prompt_logprobs
        return self.usage.count(prompt_at, chunk)

    def sorted(self) -> list[tuple[int, int, Choice]]:
        """(prompt, index, choice), in the order of the answer."""
        return [(prompt_at, index, choice) for (prompt_at, index), choice in sorted(self.choices.items())]


async def _checked(chunks: AsyncIterator[Chunk], prompt_at: int = 0) -> Stream:
    async with aclosing(cast(AsyncGenerator[Chunk, None], chunks)):
        try:
            async for chunk in chunks:
                _raise_failure(chunk)
                yield prompt_at, chunk
        except InvalidRequest as error:
            if error.code != "adapter_not_loaded":
                raise
            # It was deactivated after its name had been resolved: the caller hears what one a moment later would.
            raise NotFound(error.message, param="model", code="model_not_found") from error


def _raise_failure(chunk: Chunk) -> None:
    if chunk.finish_reason == "error":
        raise chunk.error or ArilError("the engine failed on this request")
    if chunk.finish_reason == "abort":
        raise Unavailable("the request was aborted: the server is stopping")


async def _merged(each: Sequence[AsyncIterator[Chunk]]) -> Stream:
    """Chunks of several generations as they come; the first failure ends them all."""
    news: asyncio.Queue[tuple[int, Chunk] | Exception | None] = asyncio.Queue(maxsize=len(each))

    async def pump(prompt_at: int, chunks: AsyncIterator[Chunk]) -> None:
        try:
            async with aclosing(_checked(chunks, prompt_at)) as checked:  # also when cancelled while the queue is full
                async for item in checked:
                    await news.put(item)
        except Exception as error:
            await news.put(error)
        else:
            await news.put(None)

    tasks = [asyncio.create_task(pump(at, chunks)) for at, chunks in enumerate(each)]
    try:
        running = len(tasks)
        while running:
            item = await news.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
