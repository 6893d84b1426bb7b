"""The end of the process that has the engine: answers what a worker asks, and runs its generations.

What came of a step for the streams of one worker goes to it in one frame. When a worker is gone, all that it had asked
for ends as if its clients had hung up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ...core.metrics import counter
from ...lora.catalog import Catalog, Clues
from .. import counted
from ..auth import KeyVerifier
from ..deps import Runs
from ..errors import ours
from . import wire

OnWord = Callable[[wire.OfItself], None]

ANSWERS = counter("worker_answers", "HTTP responses to inference begun by each process that answers HTTP", ("worker",))


@dataclass(frozen=True, slots=True)
class Desk:
    """What this process has that workers ask for."""

    keys: KeyVerifier
    catalog: Catalog
    runs: Runs
    hello: wire.Hello

    async def serve(
        self, worker: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_word: OnWord
    ) -> None:
        """One worker, for as long as it is there; `on_word` hears what it says of itself."""
        session = _Session(self, worker, writer, on_word)
        writer.write(wire.frame([self.hello]))
        try:
            while (frame := await _next(reader)) is not None:
                for message in wire.FROM_WORKER.decode(frame):
                    session.hear(message)
        finally:
            await session.close()


async def _next(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame; None when the worker is gone."""
    try:
        return await wire.read_frame(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class _Session:
    """One worker: what runs for it, and what it is still to be told."""

    def __init__(self, desk: Desk, worker: str, writer: asyncio.StreamWriter, on_word: OnWord) -> None:
        self._desk = desk
        self._answers = ANSWERS.labels(worker)
        self._writer = writer
        self._on_word = on_word
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._unsaid: list[wire.Told] = []

    def say(self, message: wire.Told) -> None:
        """With all else that is said in this round of the event loop: that of all streams after a step."""
        if not self._unsaid:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsaid.append(message)

    def hear(self, message: wire.ToMain) -> None:
        """What the worker says."""
        desk = self._desk
        match message:
            case wire.Count(route, status):
                self._answers.inc()
                counted.count(route, status)
            case wire.Ready() | wire.Landed():
                self._on_word(message)
            case wire.Leave(number):
                if (task := self._tasks.get(number)) is not None:
                    task.cancel()
            case wire.Run(number):
                self._begin(number, self._run(message))
            case wire.Verify(number, header, origin, query):
                self._ask(number, desk.keys.verify(header, origin, query))
            case wire.Resolve(number, model, caller, user, headers):
                self._ask(number, desk.catalog.resolve(model, caller, Clues(user, headers)))
            case wire.Room(number, priority):
                self._ask(number, desk.runs.check(priority))
            case wire.ListModels(number, caller):
                self._ask(number, desk.catalog.list(caller))
            case wire.FindModel(number, model, caller):
                self._ask(number, desk.catalog.find(model, caller))

    async def close(self) -> None:
        """The worker is gone."""
        self._writer.close()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _send(self) -> None:
        messages, self._unsaid = self._unsaid, []
        if not self._writer.is_closing():
            self._writer.writelines(self._frames(messages))

    def _frames(self, messages: Sequence[wire.Told]) -> list[bytes]:
        """All of them; one that cannot be sent ends what it is about, and costs the others nothing."""
        try:
            return [wire.frame(messages)]
        except Exception as error:
            if len(messages) > 1:
                return [frame for message in messages for frame in self._frames([message])]
            number = messages[0].number
            if (task := self._tasks.get(number)) is not None:
                task.cancel()
            return [wire.frame([wire.End(number, wire.failure_of(ours(error)))])]

    def _ask(self, number: int, question: Coroutine[Any, Any, object]) -> None:
        self._begin(number, self._answer(number, question))

    def _begin(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[number] = asyncio.create_task(self._guarded(number, work))
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _guarded(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        """`work`, whose failure is the worker's answer."""
        try:
            await work
        except Exception as error:
            self.say(wire.End(number, wire.failure_of(ours(error))))

    async def _answer(self, number: int, question: Coroutine[Any, Any, object]) -> None:
        self.say(wire.Answer(number, await question))

    async def _run(self, asked: wire.Run) -> None:
        number, generation, told = asked.number, asked.generation, False
        async with aclosing(self._desk.runs.run(generation)) as stream:
            async for prompt_at, chunk in stream:
                if not told:
                    told = True
                    self.say(wire.Begin(number, generation.headers))
                self.say(wire.news_of(number, prompt_at, chunk))
        self.say(wire.End(number, None))
