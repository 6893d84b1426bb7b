"""The books: who may ask, and what each request came to. In memory; written every second, in one transaction.

A batch that cannot be written is kept and tried again, with its number, so that it is counted once. Whatever ends this
process loses the requests that ended since the last flush, a second's at most while the database answers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from ..core.errors import ArilError
from ..core.log import event, get_logger
from ..core.metrics import counter, gauge
from ..engine.metering import Observer, Outcome, Permit, Work
from . import usage
from .db import Database
from .quotas import Quotas, Reservation, Spent
from .tables import NAME_LENGTH
from .tasks import Tasks
from .usage import Counts, Line

FLUSH_SECONDS = 1.0
RETELL_ROUNDS = 30  # flushes between words to other servers about what has not changed
SWEEP_ROUNDS = 60  # flushes between sweeps of what nobody asks for any more
CLIENT_GONE = "client_gone"  # how requests end that their client did not wait for: nobody's error
FAILED = counter("usage_flushes_failed", "Batches of usage that could not be written, and are kept")
UNWRITTEN = gauge("usage_unwritten_requests", "Requests that have ended and are not in the database yet")

log = get_logger(__name__)


@dataclass(slots=True)
class Entry:
    """One request that was let in. Implements engine.metering.Permit."""

    books: Books
    work: Work
    reservation: Reservation

    @property
    def headers(self) -> Mapping[str, str]:
        """OpenAI's rate-limit headers, where there are limits."""
        return self.reservation.headers

    def end(self, outcome: Outcome) -> None:
        """Take down what it came to."""
        if outcome.refused:
            self.reservation.give_back()
        else:
            self.reservation.settle(outcome.prompt_tokens + outcome.completion_tokens)
        self.books.count(self.work, outcome)


class Books:
    """The one meter of a server. Implements engine.metering.Meter."""

    def __init__(
        self, database: Database, quotas: Quotas, observers: Sequence[Observer] = (), *, seconds: float = FLUSH_SECONDS
    ) -> None:
        """`observers` hear of each request that has ended."""
        self._database = database
        self._quotas = quotas
        self._observers = tuple(observers)
        self._seconds = seconds
        self._server = secrets.token_hex(8)
        self._open: dict[Line, Counts] = {}  # what has ended since the last batch was closed
        self._batch: dict[Line, Counts] = {}  # what is being written, until it is known to be
        self._number = 0  # of the batch
        self._told: dict[str, Spent] = {}
        self._heard = True  # whether others, or this server in an earlier life, had spent anything
        self._rounds = 0
        self._turn = asyncio.Lock()
        self._timer = Tasks()

    def admit(self, work: Work) -> Permit:
        """Let `work` in; raises RateLimited, and TooLarge for what no limit has room for."""
        return Entry(self, work, self._quotas.admit(work))

    def count(self, work: Work, outcome: Outcome) -> None:
        """`work` has ended; what was refused is no usage, though observers hear of it."""
        if not outcome.refused:
            self._add(work, outcome)
        for observer in self._observers:
            observer.ended(work, outcome)

    def start(self) -> None:
        """Go on flushing in the background."""
        self._timer.start(self._forever())

    async def flush(self) -> None:
        """Write what has ended so far, and level limits with other servers. Raises ArilError; nothing is lost then."""
        async with self._turn:
            while self._batch or self._open:
                if not self._batch:
                    self._batch, self._open = self._open, {}
                    self._number += 1
                await self._write(self._number, self._batch)
                self._batch = {}
            await self._level()

    async def close(self) -> None:
        """Write what there is; what cannot be written now is lost, and the log says how much."""
        self._timer.cancel()
        try:
            await self.flush()
        except ArilError as error:
            lost = [*self._batch.values(), *self._open.values()]
            requests, tokens = sum(c.requests for c in lost), sum(c.prompt_tokens + c.completion_tokens for c in lost)
            log.error(event("usage_lost", requests=requests, tokens=tokens, error=error))

    def _add(self, work: Work, outcome: Outcome) -> None:
        counts = self._open.setdefault(_line(work), Counts())
        counts.requests += 1
        counts.errors += outcome.error not in (None, CLIENT_GONE)
        counts.prompt_tokens += outcome.prompt_tokens
        counts.cached_tokens += outcome.cached_tokens
        counts.completion_tokens += outcome.completion_tokens
        UNWRITTEN.inc()

    async def _write(self, number: int, batch: Mapping[Line, Counts]) -> None:
        await self._database.run(lambda session: usage.add(session, self._server, number, batch))
        UNWRITTEN.dec(sum(counts.requests for counts in batch.values()))

    async def _level(self) -> None:
        spent = self._quotas.spent()
        news = {subject: spent.get(subject, Spent()) for subject in {*spent, *self._told}}
        again = self._rounds % RETELL_ROUNDS == 0  # what is owed may stay the same for over a minute
        changed = {
            subject: one
            for subject, one in news.items()
            if one != self._told.get(subject) or one.running or (again and one.tokens)
        }
        sweeps = self._rounds % SWEEP_ROUNDS == 0
        self._rounds += 1

        def work(session: Session) -> dict[str, Spent]:
            usage.tell(session, self._server, changed)
            if sweeps:
                usage.sweep(session)
            return usage.elsewhere(session, self._server)

        if changed or self._heard or not self._database.is_sqlite:  # a server on SQLite has no others
            others = await self._database.run(work)
            self._quotas.hear(others)
            self._heard = bool(others)
        self._told = spent

    async def _forever(self) -> None:
        fine = True
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self.flush()
                fine = True
            except Exception as error:  # whatever it is, the next try comes
                FAILED.inc()
                if fine:
                    log.error(event("usage_not_written", error=error), exc_info=not isinstance(error, ArilError))
                fine = False


def _line(work: Work) -> Line:
    found, caller = work.resolution, work.caller
    model = found.speaker.rpartition("@")[0] if found.ref else found.speaker
    revision = found.ref.revision if found.ref else 0
    return Line(usage.today(), caller.tenant, caller.name, model[:NAME_LENGTH], revision)
