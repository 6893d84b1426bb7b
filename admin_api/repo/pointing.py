"""The one place that writes what an alias says. The lock of its adapter is held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from ...core.callers import Caller
from ..tables import Adapter, Alias, now
from .adapters import note

MAX_HISTORY = 32  # moves that can be taken back


def point(session: Session, caller: Caller, owner: Adapter, name: str, said: Mapping[str, Any]) -> Alias:
    """Make an alias, or change of it what `said` names: weights, sticky_header, shadow, bounds. What it says already
    changes nothing."""
    alias = owner.alias(name)
    if alias is None:
        alias = Alias(name=name, weights={}, history=[])
        owner.aliases.append(alias)
        before = None
    else:
        before = told(alias)
        if {**before, **said} == before:
            return alias
    if before is not None and said.get("weights", alias.weights) != alias.weights:
        alias.history = [*alias.history, alias.weights][-MAX_HISTORY:]
    for field, value in said.items():
        setattr(alias, field, value)
    _changed(session, caller, "alias", owner, alias, before=before, after=told(alias))
    return alias


def whole(number: int) -> dict[str, dict[str, int]]:
    """What to say of an alias that leads to one revision."""
    return {"weights": {str(number): 100}}


def go_back(
    session: Session, caller: Caller, owner: Adapter, alias: Alias, why: Mapping[str, Any] | None = None
) -> Alias:
    """Take the last move back; `why` goes to the audit."""
    before = told(alias)
    alias.weights, alias.history = alias.history[-1], alias.history[:-1]
    reason = {"why": dict(why)} if why else {}
    _changed(session, caller, "rollback", owner, alias, before=before, after=told(alias) | reason)
    return alias


def forget(session: Session, caller: Caller, owner: Adapter, alias: Alias) -> None:
    """Let it mean nothing."""
    owner.aliases.remove(alias)
    note(session, caller, "unalias", owner, alias=alias.name, before=told(alias))


def told(alias: Alias) -> dict[str, Any]:
    """What the audit keeps of it."""
    return {
        "weights": alias.weights,
        "sticky_header": alias.sticky_header,
        "shadow": alias.shadow,
        "bounds": alias.bounds,
    }


def _changed(
    session: Session,
    caller: Caller,
    action: str,
    owner: Adapter,
    alias: Alias,
    *,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any],
) -> None:
    heaviest = next((r for r in owner.revisions if r.number == alias.heaviest), None)
    alias.changed = now()
    alias.version = owner.version + 1  # `note` raises that; an alias made anew never has the ETag of one before it
    note(session, caller, action, owner, alias=alias.name, revision=heaviest, before=before, after=after)
