"""A revision on its way through the gate: claimed by one server, for a while, then READY or REJECTED."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.orm import Session, aliased, contains_eager

from ...core.callers import Caller
from ...core.errors import Conflict
from ..tables import DEFAULT_ALIAS, Adapter, Revision, State, now
from .adapters import note
from .pointing import point, whole
from .revisions import change_state

LEASE_SECONDS = 15  # after which another server takes over what this one was checking


def claim(session: Session, server: str) -> Revision | None:
    """The revision that is to be checked next, from now on CHECKING by `server`; None when there is none.

    Of the tenants who wait, that is the oldest of whoever has fewest under check: a thousand uploads of one tenant are
    in nobody else's way.
    """
    abandoned = and_(Revision.state == State.CHECKING, Revision.checked_until < now())
    other, of = aliased(Revision), aliased(Adapter)
    is_busy = and_(other.state == State.CHECKING, other.checked_until >= now(), of.tenant_id == Adapter.tenant_id)
    busy = select(func.count(other.id)).join(of, other.adapter_id == of.id).where(is_busy).scalar_subquery()
    waiting = (
        select(Revision)
        .join(Revision.adapter)
        .options(contains_eager(Revision.adapter))
        .where(or_(Revision.state == State.UPLOADED, abandoned))
        .order_by(busy, Revision.id)
        .limit(1)
    )
    revision = session.scalars(waiting.with_for_update(of=Revision, skip_locked=True)).first()
    if revision is None:
        return None
    revision.state = State.CHECKING
    revision.checked_by, revision.checked_until = server, now() + LEASE_SECONDS
    revision.attempts += 1
    return revision


def abandon_all(session: Session) -> None:
    """No server is left that checks anything: whatever one was at can be claimed now."""
    session.execute(update(Revision).where(Revision.state == State.CHECKING).values(checked_until=0))


def renew(session: Session, revision: Revision) -> None:
    """Go on checking; raises Conflict when the revision is not ours any more."""
    _held(session, revision).checked_until = now() + LEASE_SECONDS


def become_ready(session: Session, revision: Revision, report: Mapping[str, Any], caller: Caller) -> Revision:
    """Let requests use a revision that `claim` gave, and move the alias `default` as its uploader wished.

    Raises Conflict when it is not ours any more: deleted, or taken over by another server.
    """
    held = _held(session, revision)
    owner = held.adapter
    before = change_state(held, State.READY)
    held.report = dict(report)
    note(session, caller, "ready", owner, revision=held, before=before)
    if held.activate or (held.activate is None and owner.alias(DEFAULT_ALIAS) is None):
        point(session, caller, owner, DEFAULT_ALIAS, whole(held.number))
    return held


def become_rejected(session: Session, revision: Revision, report: Mapping[str, Any], caller: Caller) -> Revision:
    """Refuse a revision that `claim` gave; `report` says why. Raises Conflict when it is not ours any more."""
    held = _held(session, revision)
    before = change_state(held, State.REJECTED)
    held.report = dict(report)
    note(session, caller, "reject", held.adapter, revision=held, before=before)
    return held


def postpone(
    session: Session, revision: Revision, report: Mapping[str, Any], *, seconds: int, is_attempt: bool
) -> Revision:
    """Let somebody claim a revision that `claim` gave again in `seconds`; `report` says why it came to nothing.

    `is_attempt`: whether it counts as one. Raises Conflict when it is not ours any more.
    """
    held = _held(session, revision)
    held.report, held.checked_until = dict(report), now() + seconds
    held.attempts -= not is_attempt
    return held


def _held(session: Session, revision: Revision) -> Revision:
    owner = select(Adapter).where(Adapter.id == revision.adapter_id).with_for_update(of=Adapter)
    session.scalars(owner).one_or_none()
    found = session.get(Revision, revision.id, populate_existing=True)
    if found is None or found.state is not State.CHECKING or found.checked_by != revision.checked_by:
        raise Conflict(f"revision {revision.number} is not being checked here any more")
    return found
