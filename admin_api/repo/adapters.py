"""Adapters: found by name within the caller's tenant, changed, and forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Row, exists, or_, select, tuple_
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from ...core.callers import Caller, Scope
from ...core.errors import Conflict, InvalidRequest, NotFound
from .. import audit
from ..etags import check_match
from ..tables import Adapter, Revision, State, Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which adapters a list shows, and where it begins. `tenant` None: those of all."""

    tenant: str | None
    query: str | None = None  # part of the name or the description, in any case
    state: State | None = None  # that some revision has
    after: str | None = None  # the cursor of the page before
    limit: int = 100


def page(session: Session, caller: Caller, wanted: Wanted) -> tuple[Sequence[Row[Any]], str | None]:
    """Adapters by name, as rows with the name of their `tenant`, and the cursor of the next page, if there is one."""
    told: Sequence[Any] = (
        Adapter.id, Adapter.name, Adapter.description, Adapter.public, Adapter.version, Adapter.created,
        Adapter.tenant_id, Tenant.name.label("tenant"),
    )  # fmt: skip
    chosen = select(*told).join(Tenant, Tenant.id == Adapter.tenant_id)
    chosen = chosen.order_by(Adapter.name, Adapter.tenant_id).limit(wanted.limit + 1)
    if wanted.tenant is not None:
        chosen = chosen.where(Adapter.tenant_id == caller.tenant_id)
    if caller.adapters is not None:
        chosen = chosen.where(Adapter.name.in_(caller.adapters))
    if wanted.query:
        is_in = (column.icontains(wanted.query, autoescape=True) for column in (Adapter.name, Adapter.description))
        chosen = chosen.where(or_(*is_in))
    if wanted.state is not None:
        of = (Revision.adapter_id == Adapter.id, Revision.state == wanted.state)
        chosen = chosen.where(exists().where(*of))
    if wanted.after is not None:
        name, _, tenant = wanted.after.rpartition("@")
        if not name or not tenant.isascii() or not tenant.isdigit() or len(tenant) > 9:
            raise InvalidRequest("cursor is none that a list of this server ended with", param="cursor")
        chosen = chosen.where(tuple_(Adapter.name, Adapter.tenant_id) > tuple_(name, int(tenant)))
    found = session.execute(chosen).all()
    rows = found[: wanted.limit]
    return rows, f"{rows[-1].name}@{rows[-1].tenant_id}" if len(found) > len(rows) else None


def adapter(session: Session, caller: Caller, name: str, *, lock: bool = False, match: str | None = None) -> Adapter:
    """One adapter with its revisions, with `lock` held against other writers; raises NotFound, and Stale unless `match`
    holds."""
    found = find(session, caller, name, lock=lock)
    if found is None:
        raise NotFound(f"no adapter {name!r}", param="name", code="adapter_not_found")
    check_match(match, found.version)
    return found


def find(session: Session, caller: Caller, name: str, *, lock: bool = False) -> Adapter | None:
    """The same, or None."""
    wanted = select(Adapter).where(Adapter.tenant_id == caller.tenant_id, Adapter.name == name)
    if lock:
        wanted = wanted.with_for_update(of=Adapter)
    found = session.scalars(wanted).one_or_none()
    return _whole(found) if found is not None and caller.may_use(name) else None


def describe(session: Session, caller: Caller, name: str, said: Mapping[str, Any], *, match: str | None) -> Adapter:
    """Change description or public; raises NotFound, Stale, Forbidden, and Conflict for a second public one."""
    found = adapter(session, caller, name, lock=True, match=match)
    before = {field: getattr(found, field) for field in said}
    if before == dict(said):
        return found
    if said.get("public", found.public) != found.public:
        caller.require(Scope.ADMIN)
        _refuse_second(session, found)
    for field, value in said.items():
        setattr(found, field, value)
    note(session, caller, "change", found, before=before, after=said)
    return found


def delete(session: Session, caller: Caller, name: str, *, match: str | None = None) -> Adapter:
    """Forget `name` with its revisions and aliases; raises NotFound, and Stale unless `match` holds."""
    found = adapter(session, caller, name, lock=True, match=match)
    note(session, caller, "delete", found, revision=found.active)
    session.delete(found)
    session.flush()
    return found


def acting(session: Session, caller: Caller, tenant: str) -> Caller:
    """`caller`, acting for a tenant; raises NotFound."""
    number = session.scalar(select(Tenant.id).where(Tenant.name == tenant))
    if number is None:
        raise NotFound(f"no tenant {tenant!r}", param="tenant", code="tenant_not_found")
    return replace(caller, tenant=tenant, tenant_id=number)


def note(
    session: Session,
    caller: Caller,
    action: str,
    adapter: Adapter,
    *,
    revision: Revision | None = None,
    alias: str | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Add a line to the audit about an adapter or one of its aliases, and give its row a new version."""
    if action != "delete":
        adapter.version += 1
    kind: audit.Kind = "adapter" if alias is None else "alias"
    subject = adapter.name if alias is None else f"{adapter.name}@{alias}"
    session.flush()
    tenant = adapter.tenant.name
    audit.note(session, caller, action, kind, subject, tenant=tenant, revision=revision, before=before, after=after)


def _whole(adapter: Adapter) -> Adapter:
    """Its revisions and aliases know it too, also when the session has ended; asking the database would be slow."""
    for part in (*adapter.revisions, *adapter.aliases):
        set_committed_value(part, "adapter", adapter)
    return adapter


def _refuse_second(session: Session, adapter: Adapter) -> None:
    """Two public adapters of one name would be two meanings of it."""
    others = select(Adapter.id).where(Adapter.name == adapter.name, Adapter.public, Adapter.id != adapter.id)
    if session.scalars(others).first() is not None:
        raise Conflict(f"another tenant's {adapter.name!r} is public already", param="public", code="name_taken")
