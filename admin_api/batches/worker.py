"""Runs batches, a few at a time, each by one server of all on the database; another goes on when that one dies.

What is known of a batch is in the database: an answer is a row, written with the counts in one transaction that asks
whether the batch is still ours. So whoever goes on asks for the lines that have no row yet, and no line has two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from sqlalchemy.orm import Session

from ...core.answering import Answerer
from ...core.batch_lines import Line, Reply
from ...core.callers import Caller, Scope
from ...core.errors import ArilError, Conflict, Forbidden, Unauthorized, Unavailable
from ...core.log import event, get_logger
from ...core.metrics import counter, gauge
from ..db import Database
from ..tables import Batch, BatchState, now
from ..tasks import News, Tasks, first_of, found_or_woken, seen_through
from . import files, rows
from .asking import Asker
from .reading import check, raw_lines, read
from .rows import Held

T = TypeVar("T")
BATCHES_AT_ONCE = 16
LOOK_SECONDS = 5.0  # between looks for what a dead server has left
RENEW_SECONDS = rows.LEASE_SECONDS / 3
MAX_ATTEMPTS = 8  # of servers that ended, or failed, before they had one more line answered
EXPIRED_AT_ONCE = 500  # lines
WAKE = "batches"  # subject of the news that one waits

LINES = counter("batch_lines", "Lines of batches that were answered: ok, or with an error", ("result",))
RUNNING = gauge("batches_running", "Batches that this server is at")
log = get_logger(__name__)


class Worker:
    """Runs what waits, from `start` to `close`."""

    def __init__(
        self,
        database: Database,
        stands_for: Callable[[str], Caller],
        server: str,
        *,
        lines_at_once: int,
    ) -> None:
        """`stands_for` says who a caller is now, by name; it raises Unauthorized when that is nobody any more."""
        self._database = database
        self._stands_for = stands_for
        self._server = server
        self._news = News()
        self._lines_at_once = lines_at_once
        self._lines = asyncio.Semaphore(lines_at_once)
        self._room = asyncio.Semaphore(BATCHES_AT_ONCE)
        self._work = Tasks()
        self._answerer: Answerer | None = None

    async def start(self, answerer: Answerer) -> None:
        """Begin. A database in a file has no other server: what is under way there was left by a crash."""
        self._answerer = answerer
        if self._database.is_sqlite:
            await self._database.run(rows.abandon_all)
        self._work.start(self._forever())

    @property
    def paths(self) -> Collection[str]:
        """The routes that batches may be made for."""
        return () if self._answerer is None else self._answerer.paths

    def wake(self) -> None:
        """A batch waits."""
        self._news.tell(WAKE)

    def changed(self, id: str) -> None:
        """A batch was cancelled."""
        self._news.tell(id)

    async def close(self) -> None:
        """What is running is left to the next start, or to another server."""
        if self._answerer is None:
            return
        self._work.cancel()
        with suppress(ArilError):  # then the leases end by themselves
            await self._database.run(lambda session: rows.release(session, self._server))

    async def sweep(self) -> None:
        """Drop files that have expired, and batches of long ago."""
        for sweep in (files.sweep, rows.sweep):
            await self._database.run(sweep)

    async def _forever(self) -> None:
        while True:
            await self._room.acquire()
            while (batch := await self._look()) is None:
                pass
            self._work.start(self._handle(Held(batch, self._server)))

    async def _look(self) -> Batch | None:
        """The next batch that waits, claimed; None after a while without one."""
        woken = self._news.next(WAKE)
        looking = self._database.run(lambda session: rows.claim(session, self._server))
        return await found_or_woken(looking, woken, seconds=LOOK_SECONDS, who="batches")

    async def _handle(self, held: Held) -> None:
        RUNNING.inc()
        try:
            ended = await self._unless_cancelled(held)
            log.info(event("batch_ended", batch=ended.id, state=ended.state.value, lines=ended.total))
        except Conflict as error:
            log.info(event("batch_overtaken", batch=held.batch.id, error=error))
        except Unavailable as error:  # no engine or no database here; another server may have them
            log.error(event("batch_waits", batch=held.batch.id, error=error))
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(ArilError):
                await self._database.run(lambda session: rows.release(session, self._server, held.batch.id))
        except ArilError as error:  # the lease ends by itself, and somebody claims it again
            log.error(event("batch_interrupted", batch=held.batch.id, error=error))
        finally:
            RUNNING.dec()
            self._room.release()

    async def _unless_cancelled(self, held: Held) -> Batch:
        """The batch at its end, while the lease is renewed. Raises Conflict when it was lost."""
        if (ended := await first_of(self._run(held), self._watch(held))) is not None:
            return ended
        return await self._database.run(lambda session: rows.end(session, held, BatchState.CANCELLED))

    async def _watch(self, held: Held) -> None:
        """Renew the lease until the batch is to be cancelled."""
        while True:
            changed = self._news.next(held.batch.id)
            with suppress(Unavailable):
                if await self._database.run(lambda session: rows.renew(session, held)) is BatchState.CANCELLING:
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), RENEW_SECONDS)

    async def _run(self, held: Held) -> Batch:
        """From wherever it stands to its end."""
        if held.batch.state is BatchState.FINALIZING:  # every line has its answer, however late it is now
            return await self._end(held, BatchState.COMPLETED)
        if held.batch.attempts > MAX_ATTEMPTS:
            message = f"{MAX_ATTEMPTS} servers ended or failed at it before one more line was answered"
            return await self._end(held, BatchState.FAILED, Unavailable(message, code="server_error"))
        if held.batch.state is BatchState.VALIDATING:
            checked = await check(raw_lines(self._database, held.batch.input_file_id), held.batch.endpoint)
            if checked.errors:
                return await self._end(held, BatchState.FAILED, *checked.errors)
            await self._database.run(lambda session: rows.begin(session, held, checked.total, checked.model))
        try:
            async with asyncio.timeout(held.batch.expires - now()):
                await self._answer_lines(held)
        except TimeoutError:
            if (expired := await self._expire(held)) is not None:
                return expired
        except (Unauthorized, Forbidden) as error:
            message = f"{held.batch.caller}, whose requests these are, may not make them any more: {error.message}"
            return await self._end(held, BatchState.FAILED, Forbidden(message, code="caller_refused"))
        await self._database.run(lambda session: rows.finalize(session, held))
        return await self._end(held, BatchState.COMPLETED)

    async def _answer_lines(self, held: Held) -> None:
        assert self._answerer is not None

        async def write(reply: Reply) -> None:
            await self._database.run(lambda session: rows.record(session, held, [reply]))
            LINES.labels("ok" if reply.ok else "error").inc()

        async def keep(reply: Reply) -> None:
            await seen_through(write(reply))  # who goes on after this sees the answer, or it never is there

        asker = Asker(
            self._answerer,
            lambda: self._caller(held.batch),
            keep,
            room=self._lines,
            at_once=self._lines_at_once,
        )
        async with aclosing(self._unanswered(held.batch)) as lines:
            await asker.run(lines)

    def _caller(self, batch: Batch) -> Caller:
        """Who asks, as of now."""
        caller = self._stands_for(batch.caller)
        caller.require(Scope.INFER)
        if caller.tenant_id != batch.tenant_id:
            raise Unauthorized("the key is another tenant's now")
        return replace(caller, origin=batch.origin)

    async def _unanswered(self, batch: Batch) -> AsyncGenerator[Line, None]:
        """The lines that have no answer yet."""
        answers = (batch.output_file_id, batch.error_file_id)
        done: Collection[int] = await self._database.run(lambda session: files.numbers(session, answers))
        async with aclosing(raw_lines(self._database, batch.input_file_id)) as lines:
            async for number, raw in lines:
                if number not in done:
                    yield await read(raw, partial(Line.of, raw, number, [batch.endpoint]))

    async def _expire(self, held: Held) -> Batch | None:
        """The batch at its end, where every line without an answer has been told that its time is up; None where there
        was no such line. The last of them are told as the batch ends: whatever ends this in the middle, one is left."""
        late: list[Reply] = []
        message = "This request could not be executed before the completion window expired."

        async with aclosing(self._unanswered(held.batch)) as lines:
            async for line in lines:
                if len(late) == EXPIRED_AT_ONCE:
                    replies, late = late, []
                    await self._database.run(partial(rows.record, held=held, replies=replies))
                late.append(Reply.none(line, "batch_expired", message))

        def end(session: Session) -> Batch:
            rows.record(session, held, late)
            return rows.end(session, held, BatchState.EXPIRED)

        return await self._database.run(end) if late else None

    async def _end(self, held: Held, state: BatchState, *errors: ArilError) -> Batch:
        told = [
            {"code": e.code, "line": getattr(e, "number", None), "message": e.message, "param": e.param} for e in errors
        ]
        return await self._database.run(lambda session: rows.end(session, held, state, told))
