"""Takes uploaded revisions through the gate, a few at a time, until they are READY or REJECTED.

A check that fails for a reason of the server (no engine, no database, bytes that are not there) says nothing about the
adapter: the revision stays CHECKING with that reason in its report, and is tried again later, by any server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from sqlalchemy.orm import Session

from ...core.callers import EVERYTHING, Caller
from ...core.errors import ArilError, Conflict, Unavailable
from ...core.log import event, get_logger
from ...core.metrics import ADAPTERS, adapter_counter, histogram
from ...engine.client import EngineClient
from ...lora.adapter import AdapterRef
from ...lora.config import BASE_FIELD
from ...lora.fingerprint import difference
from ...lora.store import AdapterStore
from ...lora.validate import TargetSpec
from .. import repo
from ..db import Database
from ..server_id import new_server_id
from ..tables import Revision, State
from ..tasks import Tasks, first_of, found_or_woken
from .asking import Asker
from .elsewhere import warn_of_other_bases
from .files import Claims, check_files
from .golden import run_golden
from .report import Report
from .smoke import Smoke

GATE = Caller(name="gate", scopes=EVERYTHING)
NUM_AT_ONCE = 2  # revisions: while one waits for the engine, another's files are read
LOOK_SECONDS = 5.0  # between looks for what a dead server has left
RENEW_SECONDS = repo.LEASE_SECONDS / 3
MAX_ATTEMPTS = 8  # for reasons that may lie in the adapter after all; an engine or database that is away is no attempt
LONGEST_PAUSE = 60  # seconds between attempts

RESULTS = adapter_counter("adapter_gate_results", "Revisions that came out of the gate, by state", ["state"])
SECONDS = histogram("adapter_gate_seconds", "From the claim of a revision to the end of its checks")
log = get_logger(__name__)
Settle = Callable[[Session], Revision]


class Uploads(Protocol):
    """Who knows of uploads, and tells others of what became of them."""

    uploads: asyncio.Event  # set when something waits to be checked

    async def refresh(self, tenant: str, name: str) -> None:
        """Let requests see one adapter as the registry has it now."""


class Gate:
    """Checks what waits, from `start` to `stop`."""

    def __init__(
        self,
        service: Uploads,
        database: Database,
        store: AdapterStore,
        engine: EngineClient,
        targets: TargetSpec,
        *,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._service = service
        self._database = database
        self._store = store
        self._engine = engine
        self._targets = targets
        self._look_seconds = look_seconds
        self._server = new_server_id()
        self._asker = Asker(engine)
        self._smoke = Smoke(self._asker)
        self._work = Tasks()
        self._room = asyncio.Semaphore(NUM_AT_ONCE)

    @property
    def base(self) -> dict[str, object]:
        """What a revision records of the base that it was checked on."""
        return self._targets.base.said()

    async def start(self) -> None:
        """Begin. A database in a file has no other server: what is under way there was left by a crash."""
        if self._database.is_sqlite:
            await self._database.run(repo.abandon_all)
        await self._database.look(lambda session: warn_of_other_bases(session, partial(difference, now=self.base)))
        self._work.start(self._forever())

    def stop(self) -> None:
        """What is being checked is left to the next start, or to another server."""
        self._work.cancel()

    async def _forever(self) -> None:
        while True:
            await self._room.acquire()
            self._work.start(self._handle(await self._next()))

    async def _next(self) -> Revision:
        """The next revision that waits, claimed."""
        while True:
            woken = self._service.uploads
            woken.clear()
            looking = self._database.run(lambda session: repo.claim(session, self._server))
            found = await found_or_woken(looking, woken, seconds=self._look_seconds, who="gate")
            if found is not None:
                return found

    async def _handle(self, revision: Revision) -> None:
        try:
            with SECONDS.time():
                settle = await self._held(revision)
            self._tell(await self._database.run(settle))
        except Conflict as error:
            log.info(event("gate_overtaken", adapter=revision.adapter.name, revision=revision.number, error=error))
        except ArilError as error:  # the lease ends by itself, and somebody claims it again
            log.error(event("gate_cannot_settle", adapter=revision.adapter.name, error=error))
        finally:
            self._room.release()
        await self._service.refresh(revision.adapter.tenant.name, revision.adapter.name)

    async def _held(self, revision: Revision) -> Settle:
        """What the checks come to, while the lease is renewed. Raises Conflict when it was lost."""
        return await first_of(self._renew(revision), self._judged(revision))

    async def _renew(self, revision: Revision) -> Settle:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with suppress(Unavailable):
                await self._database.run(lambda session: repo.renew(session, revision))

    async def _judged(self, revision: Revision) -> Settle:
        """Run the checks, and say what is to become of the revision."""
        report = Report()
        if revision.attempts > MAX_ATTEMPTS:
            return self._given_up(revision, report, f"servers ended while they were at it, {MAX_ATTEMPTS} times")
        try:
            await self._check(revision, report)
        except Exception as error:  # of the server, or of nobody knows what
            return self._again(revision, report, error)
        return self._settled(revision, report.said(self.base, revision.attempts))

    async def _check(self, revision: Revision, report: Report) -> None:
        folder = await asyncio.to_thread(self._store.path, revision.digest)
        memory = self._engine.status().adapter_bytes_total
        said = revision.config.get(BASE_FIELD)
        claims = Claims(str(said) if said else None, revision.licence, revision.forced)
        await asyncio.to_thread(check_files, report, folder, self._targets, claims, adapter_memory=memory)
        if not report.problems:
            await self._try_out(revision, report)

    async def _try_out(self, revision: Revision, report: Report) -> None:
        """The checks that need the engine. Its name for the revision is one that no request can use."""
        ref = AdapterRef(revision.adapter.name, -revision.id, revision.digest)
        await self._engine.load_adapter(ref)
        try:
            with report.check("smoke") as check:
                await self._smoke.run(check, ref)
            if revision.golden and not report.problems:
                with report.check("golden") as check:
                    await run_golden(check, revision.golden, self._asker, ref)
        finally:
            with suppress(Unavailable):
                await self._engine.unload_adapter(ref)

    def _settled(self, revision: Revision, said: Mapping[str, Any]) -> Settle:
        decide = repo.become_rejected if said["problems"] else repo.become_ready

        def settle(session: Session) -> Revision:
            held = decide(session, revision, said, GATE)
            held.base = self.base
            return held

        return settle

    def _again(self, revision: Revision, report: Report, error: Exception) -> Settle:
        """Another attempt later; after the last, a rejection that does not blame the adapter."""
        why = error.message if isinstance(error, ArilError) else repr(error)
        away = isinstance(error, Unavailable)  # then nobody can check anything
        log.error(
            event("gate_failed", adapter=revision.adapter.name, revision=revision.number, error=why),
            exc_info=None if isinstance(error, ArilError) else error,
        )
        if revision.attempts >= MAX_ATTEMPTS and not away:
            return self._given_up(revision, report, why)
        pause = int(self._look_seconds) if away else min(2**revision.attempts, LONGEST_PAUSE)
        said = report.said(self.base, revision.attempts) | {"waiting": why, "again_in": pause}
        return lambda session: repo.postpone(session, revision, said, seconds=pause, is_attempt=not away)

    def _given_up(self, revision: Revision, report: Report, why: str) -> Settle:
        told = f"it could not be checked in {revision.attempts} attempts: {why}. Nothing is known against the files"
        return self._settled(revision, report.said(self.base, revision.attempts) | {"problems": [told]})

    def _tell(self, revision: Revision) -> None:
        if revision.state in (State.READY, State.REJECTED):
            RESULTS.labels(ADAPTERS.label(revision.adapter.name), revision.state.value).inc()
            log.info(event("gate", adapter=revision.adapter.name, revision=revision.number, state=revision.state.value))
