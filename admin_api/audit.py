"""The audit: one line for each change, in its transaction, each with a hash of itself and of all before it.

A line's hash is the SHA-256 of the JSON array [hash of the line before ("" before the first), at, tenant, actor,
origin, kind, subject, action, revision, digest, before, after], without spaces and with sorted keys. Writers take
turns, so that ids follow the order of commits; whoever alters, removes or inserts a line breaks every hash after it.
PostgreSQL tells everybody who listens to CHANNEL of a line once it is committed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from ..core.callers import Caller
from .tables import AuditLine, Revision, now

LOCK_ID = 0x61756474  # "audt"; an advisory lock of PostgreSQL is a number
CHANNEL = "aril_changes"
Kind = Literal["adapter", "alias", "tenant", "key", "store"]
FIELDS = ("at", "tenant", "actor", "origin", "kind", "subject", "action", "revision", "digest", "before", "after")


def note(
    session: Session,
    caller: Caller,
    action: str,
    kind: Kind,
    subject: str,
    *,
    tenant: str | None = None,
    revision: Revision | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Add a line to the transaction; `tenant` is whose thing it is, by default the caller's own."""
    _take_turn(session)
    line = AuditLine(
        at=now(),
        tenant=tenant or caller.tenant,
        actor=caller.name,
        origin=caller.origin,
        kind=kind,
        subject=subject,
        action=action,
        revision=revision.number if revision else None,
        digest=revision.digest if revision else None,
        before=_plain(before),
        after=_plain(after),
    )
    line.hash = hash_of(line, head(session)["head"] or "")
    session.add(line)
    session.flush()
    if _on_postgresql(session):
        session.execute(select(func.pg_notify(CHANNEL, str(line.id))))


def head(session: Session) -> dict[str, Any]:
    """Id and hash of the last line. In a log, they are what a chain whose end was cut off can be compared with."""
    last = session.execute(select(AuditLine.id, AuditLine.hash).order_by(AuditLine.id.desc()).limit(1)).first()
    return {"last": last.id, "head": last.hash} if last else {"last": None, "head": None}


def hash_of(line: AuditLine, last: str) -> str:
    """The hash that `line` must have after the one whose hash is `last`."""
    said = [last, *(getattr(line, name) for name in FIELDS)]
    return hashlib.sha256(json.dumps(said, separators=(",", ":"), sort_keys=True).encode()).hexdigest()


def _plain(said: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """As it will be read back: a hash of anything else would be one of something that is not kept."""
    found: dict[str, Any] | None = json.loads(json.dumps(said))
    return found


def _take_turn(session: Session) -> None:
    # SQLite's writers already wait for each other (BEGIN IMMEDIATE); both locks end with the transaction.
    if _on_postgresql(session):
        session.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": LOCK_ID})


def _on_postgresql(session: Session) -> bool:
    return session.get_bind().dialect.name == "postgresql"
