"""What operators do to aliases. Each of it is one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from ...core.callers import Caller
from ...core.errors import Conflict, InvalidRequest, NotFound, Stale
from ..etags import check_match
from ..tables import DEFAULT_ALIAS, Adapter, Alias
from .adapters import adapter
from .pointing import forget, go_back, point, whole
from .revisions import chosen

SETTINGS = ("weights", "sticky_header", "shadow", "bounds")


def alias(session: Session, caller: Caller, name: str, alias_name: str) -> Alias:
    """One alias; raises NotFound."""
    return _there(adapter(session, caller, name), alias_name)


def set_alias(
    session: Session, caller: Caller, name: str, alias_name: str, said: Mapping[str, Any], *, match: str | None = None
) -> Alias:
    """Make or change an alias: of SETTINGS what `said` names. All revisions that it leads to must be READY.

    Raises NotFound, Conflict, InvalidRequest for a new one without weights, and Stale unless `match` holds.
    """
    owner = adapter(session, caller, name, lock=True)
    found = owner.alias(alias_name)
    _check(match, found)
    if found is None and "weights" not in said:
        raise InvalidRequest(f"{name}@{alias_name} is new: give its revision or weights", param="revision")
    shadow = said.get("shadow")
    for number in [*(said.get("weights") or ()), *([shadow["revision"]] if shadow else [])]:
        chosen(owner, int(number))
    return point(session, caller, owner, alias_name, said)


def rollback(
    session: Session,
    caller: Caller,
    name: str,
    alias_name: str,
    *,
    match: str | None = None,
    why: Mapping[str, Any] | None = None,
) -> Alias:
    """Take the last move of an alias back; raises NotFound, Conflict when that cannot be, Stale if `match` fails."""
    owner = adapter(session, caller, name, lock=True)
    found = _there(owner, alias_name)
    _check(match, found)
    if not found.history:
        raise Conflict(f"no earlier move of {name}@{alias_name} is left to take back", param="alias")
    for number in found.history[-1]:
        chosen(owner, int(number))
    return go_back(session, caller, owner, found, why)


def remove_alias(session: Session, caller: Caller, name: str, alias_name: str, *, match: str | None = None) -> Adapter:
    """Let `name@alias` mean nothing; raises NotFound, and Stale unless `match` holds."""
    owner = adapter(session, caller, name, lock=True)
    found = _there(owner, alias_name)
    _check(match, found)
    forget(session, caller, owner, found)
    return owner


def activate(
    session: Session, caller: Caller, name: str, number: int | None = None, *, match: str | None = None
) -> Adapter:
    """Let the bare name mean revision `number`, or the newest that is READY. `match` is about the adapter."""
    owner = adapter(session, caller, name, lock=True, match=match)
    return point(session, caller, owner, DEFAULT_ALIAS, whole(chosen(owner, number).number)).adapter


def deactivate(session: Session, caller: Caller, name: str, *, match: str | None = None) -> Adapter:
    """Let the bare name mean nothing. `match` is about the adapter."""
    owner = adapter(session, caller, name, lock=True, match=match)
    default = owner.alias(DEFAULT_ALIAS)
    if default is not None:
        forget(session, caller, owner, default)
    return owner


def _there(owner: Adapter, alias_name: str) -> Alias:
    found = owner.alias(alias_name)
    if found is None:
        raise NotFound(f"adapter {owner.name!r} has no alias {alias_name!r}", param="alias", code="alias_not_found")
    return found


def _check(match: str | None, found: Alias | None) -> None:
    if found is not None:
        check_match(match, found.version)
    elif match is not None:
        raise Stale("there is no such alias any more; look again", param="If-Match")
