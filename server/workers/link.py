"""The end of a worker: asks the process that has the engine, and hears what its generations bring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import msgspec

from ...core.callers import Caller
from ...core.errors import ArilError, EngineDead
from ...core.log import event, get_logger
from ...engine.client import ModelInfo
from ...engine.mailbox import merged
from ...engine.request import Chunk
from ...engine.text import Text
from ...lora.catalog import CatalogEntry, Clues, Resolution, Sticky
from ..flights import Flights, Stream
from ..generation import Generation
from . import wire

log = get_logger(__name__)

T = TypeVar("T")
GONE = "the process that has the engine has ended; the server must be started again"


@dataclass(frozen=True, slots=True)
class Facts:
    """Of an engine that is elsewhere. Implements engine.client.EngineFacts."""

    model: ModelInfo
    text: Text
    default_params: dict[str, object]


class Link:
    """One connection. Implements server.auth.KeyVerifier, server.deps.Runs and lora.catalog.Catalog."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flights: Flights) -> None:
        """`flights` end what runs through here when the process ends; the bounds are those of the other end."""
        self._flights = flights
        self._reader = reader
        self._writer = writer
        self._numbers = count()
        self._asked: dict[int, tuple[asyncio.Future[Any], Any]] = {}  # what becomes of a question, and of what type
        self._inboxes: dict[int, _Inbox] = {}
        self._gone = False

    async def hello(self) -> wire.Hello:
        """The first word of the other end. Raises IncompleteReadError when it has none."""
        first, *rest = wire.FROM_MAIN.decode(await wire.read_frame(self._reader))
        assert isinstance(first, wire.Hello)
        assert not rest
        return first

    async def listen(self, on_order: Callable[[wire.Order], None]) -> None:
        """Hear the other end until it is gone, or not understood; whoever waits for it is told. `on_order` hears what
        it wants of this process."""
        try:
            while True:
                for message in wire.FROM_MAIN.decode(await wire.read_frame(self._reader)):
                    if isinstance(message, wire.Order):
                        on_order(message)
                    else:
                        self._hear(message)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as error:
            log.error(event("engine_not_understood", error=repr(error)), exc_info=error)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._gone = True
        for future, _ in self._asked.values():
            if not future.done():
                future.set_exception(EngineDead(GONE))
        for inbox in self._inboxes.values():
            inbox.end(EngineDead(GONE))

    def count(self, route: str, status: str) -> None:
        """An answer has begun."""
        self.tell(wire.Count(route, status))

    def tell(self, message: wire.ToMain) -> None:
        """Say something that has no answer."""
        if not self._gone:
            self._writer.write(wire.frame([message]))

    async def verify(self, header: str | None, origin: str, query: Iterable[tuple[str, str]] = ()) -> Caller:
        """The caller who sent that header."""
        found: Caller = await self._ask(wire.Verify(next(self._numbers), header, origin, list(query)), Caller)
        return found

    async def resolve(self, model: str, caller: Caller, sticky: Sticky) -> Resolution:
        """What `model` means to `caller`."""
        assert isinstance(sticky, Clues), "requests bring nothing else"
        asked = wire.Resolve(next(self._numbers), model, caller, sticky.user, dict(sticky.headers))
        found: Resolution = await self._ask(asked, Resolution)
        return found

    async def check(self, priority: int) -> None:
        """Whether there is room, in all of the server."""
        await self._ask(wire.Room(next(self._numbers), priority), None)

    async def run(self, generation: Generation) -> Stream:
        """Its chunks, as they come from the other end."""
        with self._flights.begin(generation.work, generation.priority) as flight:
            async with aclosing(self._chunks(generation)) as stream, aclosing(flight.follow(stream)) as followed:
                async for prompt_at, chunk in followed:
                    yield prompt_at, chunk

    async def _chunks(self, generation: Generation) -> Stream:
        number = next(self._numbers)
        inbox = self._inboxes[number] = _Inbox(generation)
        try:
            self._require_life()
            self.tell(wire.Run(number, generation))
            while news := await inbox.take():
                for prompt_at, chunk in news:
                    yield prompt_at, chunk
        finally:
            del self._inboxes[number]
            if not inbox.ended:
                self.tell(wire.Leave(number))

    async def list(self, caller: Caller) -> Sequence[CatalogEntry]:
        """Every adapter that `caller` can name."""
        asked = wire.ListModels(next(self._numbers), caller)
        found: Sequence[CatalogEntry] = await self._ask(asked, list[CatalogEntry])
        return found

    async def find(self, model: str, caller: Caller) -> CatalogEntry | None:
        """An adapter under that name."""
        found: CatalogEntry | None = await self._ask(
            wire.FindModel(next(self._numbers), model, caller), CatalogEntry | None
        )
        return found

    async def _ask(self, question: wire.Question, kind: Any) -> Any:
        self._require_life()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[question.number] = future, kind
        try:
            self.tell(question)
            return await future
        finally:
            del self._asked[question.number]

    def _require_life(self) -> None:
        if self._gone:
            raise EngineDead(GONE)

    def _hear(self, message: wire.ToWorker) -> None:
        match message:
            case wire.News(number, prompt_at):
                if (inbox := self._inboxes.get(number)) is not None:
                    inbox.put(prompt_at, wire.chunk_of(message, inbox.generation.id))
            case wire.Begin(number, headers):
                if (inbox := self._inboxes.get(number)) is not None:
                    inbox.generation.headers.update(headers)
            case wire.Answer(number, value):
                future, kind = self._asked.get(number, (None, None))
                if future is not None and not future.done():
                    future.set_result(msgspec.convert(value, kind))
            case wire.End(number, failure):
                self._end(number, None if failure is None else wire.error_of(failure))

    def _end(self, number: int, error: ArilError | None) -> None:
        if (inbox := self._inboxes.get(number)) is not None:
            inbox.end(error)
        future, _ = self._asked.get(number, (None, None))
        if future is not None and not future.done() and error is not None:
            future.set_exception(error)


class _Inbox:
    """What one generation has brought and nobody has read; merged while its client is slow."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.ended = False
        self._unread: dict[tuple[int, int], Chunk] = {}  # by prompt and choice, in the order of arrival
        self._error: ArilError | None = None
        self._news = asyncio.Event()

    def put(self, prompt_at: int, chunk: Chunk) -> None:
        """One more chunk."""
        key = prompt_at, chunk.index
        unread = self._unread.get(key)
        self._unread[key] = chunk if unread is None else merged(unread, chunk)
        self._news.set()

    def end(self, error: ArilError | None) -> None:
        """Nothing more will come."""
        self.ended, self._error = True, error
        self._news.set()

    async def take(self) -> list[tuple[int, Chunk]]:
        """All that is unread, as soon as there is any; nothing at the end. Raises what it ended with."""
        while not self._unread:
            if self.ended:
                if self._error is not None:
                    raise self._error
                return []
            self._news.clear()
            await self._news.wait()
        found = [(prompt_at, chunk) for (prompt_at, _), chunk in self._unread.items()]
        self._unread.clear()
        return found
