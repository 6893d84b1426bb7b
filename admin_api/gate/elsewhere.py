"""Revisions that were checked on another base than the one that is served now: said aloud at the start."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from ...core.log import event, get_logger
from ..tables import Adapter, Revision, State

NAMES = ("name", "names")  # what a base is called; the rest of a fingerprint is what it is
SHOWN = 5  # names that a line tells

log = get_logger(__name__)


def warn_of_other_bases(session: Session, base: Mapping[str, object]) -> list[str]:
    """Log which READY revisions were checked on a base that differs from `base`; returns them as name@number."""
    ready = select(Adapter.name, Revision.number, Revision.base).join(Revision.adapter)
    rows = session.execute(ready.where(Revision.state == State.READY).order_by(Revision.id))
    others = [
        f"{name}@{number}" for name, number, checked_on in rows if checked_on and _facts(checked_on) != _facts(base)
    ]
    if others:
        log.warning(event("adapters_checked_on_another_base", count=len(others), first=", ".join(others[:SHOWN])))
    return others


def _facts(base: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in base.items() if key not in NAMES}
