"""Every query on the registry. Each function is a piece of one transaction; none of them commits."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session, joinedload

from ..core.errors import Conflict, NotFound
from ..lora.adapter import AdapterRef
from ..lora.catalog import CatalogEntry
from .checked import Facts
from .tables import Adapter, AuditLine, Revision, State


def adapters(session: Session) -> Sequence[Adapter]:
    """All adapters with their revisions, by name."""
    return session.scalars(select(Adapter).order_by(Adapter.name)).all()


def adapter(session: Session, name: str) -> Adapter:
    """One adapter with its revisions; raises NotFound."""
    found = _find(session, name)
    if found is None:
        raise NotFound(f"no adapter {name!r}", param="name", code="adapter_not_found")
    return found


def chosen(session: Session, name: str, number: int | None) -> Revision:
    """Revision `number` of `name`, or the newest; raises NotFound, and Conflict when its bytes are gone."""
    revisions = adapter(session, name).revisions
    found = next((r for r in reversed(revisions) if number in (None, r.number)), None)
    if found is None:
        known = ", ".join(str(r.number) for r in revisions)
        raise NotFound(f"adapter {name!r} has no revision {number}; there are {known}", param="revision")
    if found.state is State.RETIRED:
        raise Conflict(f"revision {found.number} of {name!r} is retired, its bytes are gone; upload them again")
    return found


def active_entries(session: Session) -> Sequence[CatalogEntry]:
    """What should be served."""
    query = select(Revision).where(Revision.state == State.ACTIVE).options(joinedload(Revision.adapter))
    return [entry(revision) for revision in session.scalars(query)]


def active_entry(session: Session, name: str) -> CatalogEntry | None:
    """What `name` should resolve to, if anything."""
    found = _find(session, name)
    active = found.active if found else None
    return entry(active) if active else None


def entry(revision: Revision) -> CatalogEntry:
    """A revision as requests know it."""
    name = revision.adapter.name
    return CatalogEntry(name, AdapterRef(name, revision.number, revision.digest), revision.created)


def record(session: Session, name: str, digest: str, facts: Facts, *, description: str | None, actor: str) -> Revision:
    """The revision of `name` that has these bytes, which must be durable: a new one, or its newest if that has them."""
    owner = _find(session, name)
    if owner is None:
        owner = Adapter(name=name, description="")
        session.add(owner)
    if description is not None:
        owner.description = description
    newest = owner.revisions[-1] if owner.revisions else None
    if newest is not None and newest.digest == digest:
        return _again(session, newest, actor)
    revision = Revision(
        number=newest.number + 1 if newest else 1,
        digest=digest,
        size=facts.size,
        rank=facts.summary.rank,
        target_modules=list(facts.summary.target_modules),
        notes=list(facts.notes),
        config=dict(facts.summary.config),
        state=State.STORED,
    )
    owner.revisions.append(revision)
    session.flush()
    _audit(session, actor, "upload", name, revision)
    return revision


def activate(session: Session, name: str, number: int, *, actor: str, kept: int) -> None:
    """Make `name` resolve to revision `number`; of the older ones, all but `kept` retire."""
    revision = chosen(session, name, number)
    if revision.state is State.ACTIVE:
        return
    others = update(Revision).where(Revision.adapter_id == revision.adapter_id, Revision.id != revision.id)
    session.execute(others.where(Revision.state == State.ACTIVE).values(state=State.STORED))
    revision.state = State.ACTIVE
    session.flush()
    old = [r.number for r in revision.adapter.revisions if r.number < number][:-kept]
    session.execute(others.where(Revision.number.in_(old)).values(state=State.RETIRED))
    _audit(session, actor, "activate", name, revision)


def deactivate(session: Session, name: str, *, actor: str) -> None:
    """Make `name` resolve to nothing; raises NotFound."""
    revision = adapter(session, name).active
    if revision is not None:
        revision.state = State.STORED
        _audit(session, actor, "deactivate", name, revision)


def delete(session: Session, name: str, *, actor: str) -> None:
    """Forget `name` and its revisions; raises NotFound."""
    owner = adapter(session, name)
    _audit(session, actor, "delete", name, owner.active)
    session.delete(owner)


def needed_digests(session: Session) -> set[str]:
    """The bytes that some revision still needs."""
    return set(session.scalars(select(Revision.digest).where(Revision.state != State.RETIRED)))


def _find(session: Session, name: str) -> Adapter | None:
    return session.scalars(select(Adapter).where(Adapter.name == name)).one_or_none()


def _again(session: Session, revision: Revision, actor: str) -> Revision:
    if revision.state is State.RETIRED:
        revision.state = State.STORED
        _audit(session, actor, "upload", revision.adapter.name, revision)
    return revision


def _audit(session: Session, actor: str, action: str, name: str, revision: Revision | None) -> None:
    line = AuditLine(actor=actor, action=action, adapter=name)
    if revision is not None:
        line.revision, line.digest = revision.number, revision.digest
    session.add(line)
