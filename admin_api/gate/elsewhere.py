"""Revisions that were checked on another base than the one that is served now: said aloud at the start."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from ...core.log import event, get_logger
from ..repo import Judge
from ..tables import Adapter, Revision, State

SHOWN = 5  # names that a line tells

log = get_logger(__name__)


def warn_of_other_bases(session: Session, judge: Judge) -> list[str]:
    """Log which READY revisions are not served, as they were checked on another base; returns them as name@number."""
    ready = select(Adapter.name, Revision.number, Revision.base).join(Revision.adapter)
    rows = session.execute(ready.where(Revision.state == State.READY).order_by(Revision.id))
    others = [f"{name}@{number}" for name, number, checked_on in rows if judge(checked_on) is not None]
    if others:
        first, hint = ", ".join(others[:SHOWN]), "they are not served; `aril adapters recheck` has them checked here"
        log.warning(event("adapters_checked_on_another_base", count=len(others), first=first, hint=hint))
    return others
