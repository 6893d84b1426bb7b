"""What other servers on the same database have changed: read from the audit, told to whoever keeps a copy in memory.

Every change writes an audit line in its transaction, and ids follow the order of commits, so what is new is what lies
behind the last id seen. PostgreSQL says at once that there is something to read (LISTEN/NOTIFY); a look every second
finds it too, on SQLite and while the channel is down. What a notification says is never trusted, only that it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ..core.errors import ArilError
from ..core.log import event, get_logger
from ..core.metrics import counter, gauge
from .db import Database
from .tables import AuditLine
from .tasks import Tasks

READ = counter("feed_changes", "Lines of the audit that this server has taken in, its own included")
LISTENING = gauge("feed_listening", "1 while PostgreSQL tells this server of changes; 0: it looks every second")
LOOK_SECONDS = 1.0
MOST_AT_ONCE = 1000  # lines; of more than that, everything is read again

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the audit: whose thing of which kind has changed. An alias is `name@alias`, of the adapter `name`."""

    kind: str  # one of audit.Kind
    tenant: str
    subject: str

    @property
    def adapter(self) -> str | None:
        """The name of the adapter that it concerns."""
        return self.subject.partition("@")[0] if self.kind in ("adapter", "alias") else None


class Listener(Protocol):
    """Whoever keeps a copy of the registry in memory."""

    async def changed(self, changes: Sequence[Change] | None) -> None:
        """Read again what `changes` name; None: everything. What it raises as ArilError has it told again."""


class Feed:
    """Tells its listeners of every change that was committed after `begin`, in its order and at least once."""

    def __init__(
        self, database: Database, listeners: Sequence[Listener], *, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._database = database
        self._listeners = tuple(listeners)
        self._seconds = look_seconds
        self._seen = 0
        self._news = asyncio.Event()
        self._tasks = Tasks()

    async def begin(self) -> None:
        """From here on; call it before the listeners read for the first time."""
        self._seen = await self._database.look(_newest)

    def start(self) -> None:
        """Go on in the background."""
        self._tasks.start(self._follow())
        if not self._database.is_sqlite:
            from .channel import listen

            self._tasks.start(listen(self._database.engine, self._news.set))

    def stop(self) -> None:
        """End what `start` began."""
        self._tasks.cancel()

    async def once(self) -> int:
        """Tell of what is new now; how many lines that were. Raises ArilError and tells them again the next time."""
        lines = await self._database.look(lambda session: _after(session, self._seen))
        if not lines:
            return 0
        newest = lines[-1][0]
        changes = list(dict.fromkeys(change for _, change in lines))
        whole = newest < self._seen or len(lines) > MOST_AT_ONCE
        told = await asyncio.gather(
            *(listener.changed(None if whole else changes) for listener in self._listeners), return_exceptions=True
        )
        for result in told:
            if isinstance(result, BaseException):
                raise result
        self._seen = newest
        READ.inc(len(lines))
        return len(lines)

    async def _follow(self) -> None:
        fine = True
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._news.wait()
            self._news.clear()
            try:
                await self.once()
                fine = True
            except Exception as error:  # whatever it is, the next look comes
                if fine:
                    log.error(event("changes_not_read", error=error), exc_info=not isinstance(error, ArilError))
                fine = False


def _newest(session: Session) -> int:
    return session.scalar(select(func.max(AuditLine.id))) or 0


def _after(session: Session, seen: int) -> list[tuple[int, Change]]:
    """The lines behind `seen`; the last one there is when the audit ends before that, as after a restored backup."""
    lines = select(AuditLine.id, AuditLine.kind, AuditLine.tenant, AuditLine.subject)
    found = session.execute(lines.where(AuditLine.id > seen).order_by(AuditLine.id).limit(MOST_AT_ONCE + 1)).all()
    if not found and _newest(session) < seen:
        found = session.execute(lines.order_by(AuditLine.id.desc()).limit(1)).all()
    return [(id, Change(kind, tenant, subject)) for id, kind, tenant, subject in found]
