"""Tenants in the database. Each function is a piece of one transaction; none of them commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..core.callers import DEFAULT_TENANT, Caller
from ..core.errors import Conflict, InvalidRequest, NotFound
from . import audit, usage
from .etags import check_match
from .names import PART
from .tables import NAME_LENGTH, Adapter, Tenant

RATES = ("requests_per_minute", "tokens_per_minute", "concurrent_requests")  # of keys too
LIMITS = (*RATES, "max_adapters", "max_adapter_bytes")


def tenants(session: Session, *, name: str | None = None, after: str | None = None, limit: int = 1000) -> list[Tenant]:
    """All of them or one, by name."""
    query = select(Tenant).order_by(Tenant.name).limit(limit)
    if name is not None:
        query = query.where(Tenant.name == name)
    if after is not None:
        query = query.where(Tenant.name > after)
    return list(session.scalars(query))


def tenant(session: Session, name: str, *, lock: bool = False) -> Tenant:
    """One of them; raises NotFound."""
    query = select(Tenant).where(Tenant.name == name)
    found = session.scalars(query.with_for_update(key_share=True) if lock else query).one_or_none()
    if found is None:
        raise NotFound(f"no tenant {name!r}", param="tenant", code="tenant_not_found")
    return found


def create(session: Session, caller: Caller, name: str, limits: Mapping[str, int | None]) -> Tenant:
    """A new one; raises InvalidRequest for its name, Conflict when there is one of that name."""
    if len(name) > NAME_LENGTH or not PART.fullmatch(name):
        words = "may hold letters, digits, '.', '_' and '-', begins with a letter or digit"
        raise InvalidRequest(f"the name {name[:NAME_LENGTH]!r} {words}, {NAME_LENGTH} at most", param="name")
    if tenants(session, name=name):
        raise Conflict(f"there is a tenant {name!r}", param="name", code="name_taken")
    usage.put_aside(session, name)
    made = Tenant(name=name, **limits)
    session.add(made)
    session.flush()
    audit.note(session, caller, "create", "tenant", name, tenant=name, after=limits_of(made))
    return made


def change(session: Session, caller: Caller, name: str, limits: Mapping[str, int | None], match: str | None) -> Tenant:
    """Other limits; raises Stale when `match`, an If-Match header, names another version."""
    found = tenant(session, name, lock=True)
    check_match(match, found.version)
    before = limits_of(found)
    for limit, value in limits.items():
        setattr(found, limit, value)
    if limits_of(found) != before:
        found.version += 1
        session.flush()
        audit.note(session, caller, "change", "tenant", name, tenant=name, before=before, after=limits_of(found))
    return found


def deletable(session: Session, name: str, match: str | None) -> Tenant:
    """A tenant that may be deleted once it owns nothing; raises Stale as `change` does, Conflict for the first one."""
    found = tenant(session, name, lock=True)
    check_match(match, found.version)
    if name == DEFAULT_TENANT:
        raise Conflict(f"the tenant {name!r} is whom callers without a tenant act for, and stays", param="name")
    return found


def delete(session: Session, caller: Caller, name: str, match: str | None) -> None:
    """Forget it and its keys; raises Conflict while it owns adapters."""
    found = deletable(session, name, match)
    owned = adapters_of(session, found)
    if owned:
        shown = ", ".join(owned[:5]) + (", ..." if len(owned) > 5 else "")
        with_it = "with it (?adapters=delete, or `aril tenants delete --with-adapters`)"
        message = f"the tenant {name!r} owns adapters ({shown}); delete them first, or {with_it}"
        raise Conflict(message, param="adapters", code="tenant_not_empty")
    before = {**limits_of(found), "keys": sorted(key.id for key in found.keys)}
    audit.note(session, caller, "delete", "tenant", name, tenant=name, before=before)
    session.delete(found)


def adapters_of(session: Session, owner: Tenant) -> Sequence[str]:
    """The names of its adapters."""
    return session.scalars(select(Adapter.name).where(Adapter.tenant_id == owner.id).order_by(Adapter.name)).all()


def limits_of(row: Tenant) -> dict[str, Any]:
    """Its limits, as the audit tells them."""
    return {limit: getattr(row, limit) for limit in LIMITS}
