"""AsyncEngine: one thread turns the Engine; the event loop posts commands to it and reads mailboxes.

The thread owns the Engine alone. Commands wait in an inbox and run between two steps; news of a step reach the loop in
one call. A thread with nothing to do sleeps until a command comes or an adapter has been read.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..core.errors import ArilError, EngineDead
from ..core.log import event, get_logger
from ..lora.adapter import AdapterRef
from .client import EngineStatus, ModelInfo
from .engine import Engine
from .grammar.asked import StructuredOutputs
from .grammar.base import Grammar
from .mailbox import Mailbox
from .params import SamplingParams
from .request import Chunk, Request
from .text import Text

T = TypeVar("T")
Loop = asyncio.AbstractEventLoop

log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Reader:
    """Where the chunks of one request go, and how many choices the thread has still to end."""

    loop: Loop
    mailbox: Mailbox
    num_open: int


class AsyncEngine:
    """The EngineClient of an engine in this process. Give it an Engine and never touch that again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()  # of the two ends of the inbox: what is posted is run, or refused
        self._closed = False
        self._closing = False
        self._awake = threading.Event()
        self._readers: dict[str, _Reader] = {}  # the thread's alone
        engine.on_ready(self._awake.set)
        self._thread = threading.Thread(target=self._live, name="aril-engine", daemon=True)
        self._thread.start()

    @property
    def model(self) -> ModelInfo:
        return self._engine.model

    @property
    def text(self) -> Text:
        return self._engine.text

    @property
    def default_params(self) -> dict[str, object]:
        return self._engine.default_params

    async def generate(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        adapter: AdapterRef | None = None,
        priority: int = 0,
        salt: str = "",
        owner: str = "",
    ) -> AsyncIterator[Chunk]:
        if params.bad_words:
            params = await asyncio.to_thread(self._engine.text.spelled, params)
        mailbox = Mailbox(params.n)
        reader = _Reader(asyncio.get_running_loop(), mailbox, params.n)
        request = Request(request_id, list(prompt), params, adapter, priority, salt, owner)
        asked = params.structured_outputs
        ready = None if asked is None else await self._grammar(asked)
        self._post(lambda: self._admit(request, reader))
        try:
            while mailbox.open_choices:
                for chunk in await mailbox.take():
                    yield chunk
        finally:
            del ready  # held until now, so that the engine's thread need not make it
            if mailbox.open_choices:
                self._hang_up(request_id, reader)

    async def abort(self, request_id: str) -> None:
        await self._ask(lambda: self._engine.abort(request_id))

    async def load_adapter(self, ref: AdapterRef, *, pinned: bool = False) -> None:
        await asyncio.to_thread(self._engine.find_adapter, ref)
        await self._ask(lambda: self._engine.load_adapter(ref, pinned=pinned))

    async def unload_adapter(self, ref: AdapterRef) -> None:
        loop = asyncio.get_running_loop()
        freed: asyncio.Future[None] = loop.create_future()
        await self._ask(lambda: self._engine.unload_adapter(ref, lambda: _tell(loop, _settle, freed, None)))
        await freed

    def prepare(self) -> None:
        self._engine.grammars.start()

    def status(self) -> EngineStatus:
        status = self._engine.status()
        return dataclasses.replace(status, alive=status.alive and not self._closing)

    async def close(self) -> None:
        """End the thread; requests that still run end with EngineDead."""
        self._closing = True
        self._awake.set()
        await asyncio.to_thread(self._thread.join)

    def _post(self, command: Callable[[], None]) -> None:
        """Let the thread run `command` before its next step; raises EngineDead when there is no thread any more."""
        with self._lock:
            if self._closed:
                raise EngineDead("the engine was closed")
            self._inbox.append(command)
        self._awake.set()

    async def _ask(self, question: Callable[[], T]) -> T:
        """What `question` returns or raises on the engine's thread."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                _tell(loop, _settle, answer, question())
            except BaseException as error:  # its asker's alone
                _tell(loop, _fail, answer, _told(error))

        self._post(run)
        return await answer

    async def _grammar(self, asked: StructuredOutputs) -> Grammar:
        """Ready, or refused; it is made on other threads, and shared: a client that leaves stops nothing."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Grammar] = loop.create_future()

        def tell(ready: concurrent.futures.Future[Grammar]) -> None:
            if ready.cancelled():
                _tell(loop, _fail, answer, EngineDead("the engine was closed"))
            elif (error := ready.exception()) is not None:
                _tell(loop, _fail, answer, error)
            else:
                _tell(loop, _settle, answer, ready.result())

        self._engine.grammars.of(asked).add_done_callback(tell)
        return await answer

    def _hang_up(self, request_id: str, reader: _Reader) -> None:
        """The reader has gone: end its request. The id may be another's by now, or may never have been taken in."""

        def run() -> None:
            if self._readers.get(request_id) is reader:
                del self._readers[request_id]
                self._engine.abort(request_id)

        try:
            self._post(run)
        except EngineDead:
            return  # with everything that ran

    def _live(self) -> None:
        """The thread's life, and its end: whatever that came from, everybody is told."""
        try:
            while not self._closing:
                self._turn()
        except BaseException as error:  # a library of Rust panics with one that is no Exception
            log.critical(event("engine_thread_died", error=repr(error)), exc_info=error)
        try:
            self._engine.close()
        finally:
            self._end()

    def _end(self) -> None:
        """Nobody waits for the thread any more."""
        with self._lock:
            self._closed = self._closing = True
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            _tell(reader.loop, reader.mailbox.fail, EngineDead("the engine was closed"))
        self._run_commands()  # those that came too late are told so

    def _turn(self) -> None:
        """Commands, then a step."""
        if not self._engine.has_work or self._engine.stalled:
            self._awake.wait()
        self._awake.clear()
        self._run_commands()
        if self._engine.has_work:
            self._deliver(self._engine.step())

    def _run_commands(self) -> None:
        """Those that are here now; what they post themselves waits for a step."""
        for _ in range(len(self._inbox)):
            self._inbox.popleft()()

    def _admit(self, request: Request, reader: _Reader) -> None:
        try:
            if request.id not in self._readers and self._engine.knows(request.id):
                self._post(lambda: self._admit(request, reader))  # its last owner hung up: a step tells its end
                return
            self._engine.add(request)
        except BaseException as error:  # its own alone
            _tell(reader.loop, reader.mailbox.fail, _told(error))
        else:
            self._readers[request.id] = reader

    def _deliver(self, chunks: Sequence[Chunk]) -> None:
        """All news of a step, in one call to each loop (there is one)."""
        mail: dict[Loop, list[tuple[Mailbox, Chunk]]] = defaultdict(list)
        for chunk in chunks:
            reader = self._readers.get(chunk.request_id)
            if reader is None:
                continue  # it hung up
            mail[reader.loop].append((reader.mailbox, chunk))
            reader.num_open -= chunk.finish_reason is not None
            if not reader.num_open:
                del self._readers[chunk.request_id]
        for loop, letters in mail.items():
            _tell(loop, _put_all, letters)


def _told(error: BaseException) -> Exception:
    """As a client may hear it."""
    return error if isinstance(error, Exception) else ArilError(f"the engine failed on it: {error!r}")


def _put_all(letters: Iterable[tuple[Mailbox, Chunk]]) -> None:
    for mailbox, chunk in letters:
        mailbox.put(chunk)


def _settle(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():  # else its asker has gone
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _tell(loop: Loop, callback: Callable[..., object], *args: object) -> None:
    """Call on the event loop, from the thread."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        return  # the loop is closed, and its readers with it
