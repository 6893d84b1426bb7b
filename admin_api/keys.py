"""Keys in the database. Each function is a piece of one transaction; none of them commits, and none learns a secret."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..core.bearer import digest_of
from ..core.callers import Caller, Scope
from ..core.errors import Conflict, InvalidRequest, NotFound
from . import audit
from .etags import check_match
from .names import check_spelling
from .tables import Key, Tenant, now
from .tenants import RATES, tenant

FIELDS = ("name", "scopes", "adapters", "expires", *RATES)
NUM_SHOWN = 9  # characters of a key that are kept, of some 48: enough to tell one's own keys apart


def keys(session: Session, *, owner: str | None, after: str | None = None, limit: int = 1000) -> list[Key]:
    """Those of a tenant, or all, in the order of their ids."""
    query = select(Key).order_by(Key.id).limit(limit)
    if owner is not None:
        query = query.join(Tenant).where(Tenant.name == owner)
    if after is not None:
        query = query.where(Key.id > after)
    return list(session.scalars(query))


def key(session: Session, id: str, *, lock: bool = False) -> Key:
    """One of them; raises NotFound."""
    query = select(Key).where(Key.id == id)
    found = session.scalars(query.with_for_update(of=Key) if lock else query).one_or_none()
    if found is None:
        raise NotFound(f"no key {id!r}", param="id", code="key_not_found")
    return found


def create(session: Session, caller: Caller, owner: str, secret: str, fields: Mapping[str, Any]) -> Key:
    """Keep the digest of `secret`, which opens what `fields` say. Raises NotFound without such a tenant, and
    InvalidRequest."""
    made = Key(id=f"key_{secrets.token_hex(8)}", tenant=tenant(session, owner, lock=True))
    made.digest, made.shown = digest_of(secret).hex(), secret[:NUM_SHOWN]
    _fill(made, fields)
    session.add(made)
    session.flush()
    audit.note(session, caller, "create", "key", made.id, tenant=owner, after=told(made))
    return made


def change(session: Session, caller: Caller, id: str, fields: Mapping[str, Any], match: str | None) -> Key:
    """Other fields; raises Stale when `match`, an If-Match header, names another version, and Conflict for a revoked
    key."""
    found = key(session, id, lock=True)
    check_match(match, found.version)
    if found.revoked is not None:
        raise Conflict(f"the key {id} has been revoked for good; make another", param="id", code="key_revoked")
    before = told(found)
    _fill(found, fields)
    if told(found) != before:
        found.version += 1
        session.flush()
        audit.note(session, caller, "change", "key", id, tenant=found.tenant.name, before=before, after=told(found))
    return found


def revoke(session: Session, caller: Caller, id: str, match: str | None) -> Key:
    """Let it open nothing any more, for good; the row stays, for the audit and the usage that name it."""
    found = key(session, id, lock=True)
    check_match(match, found.version)
    if found.revoked is None:
        found.revoked = now()
        found.version += 1
        session.flush()
        audit.note(session, caller, "revoke", "key", id, tenant=found.tenant.name, before=told(found))
    return found


def told(row: Key) -> dict[str, Any]:
    """What the audit tells of a key: nothing of its secret."""
    return {field: getattr(row, field) for field in FIELDS}


def _fill(row: Key, fields: Mapping[str, Any]) -> None:
    """Set `fields` of a key; raises InvalidRequest for what makes no sense."""
    if (expires := fields.get("expires")) is not None and expires <= now():
        raise InvalidRequest(f"expires: {expires} is over already; it is a time in seconds since 1970", param="expires")
    for name, value in fields.items():
        setattr(row, name, value)
    if not row.scopes:
        raise InvalidRequest("scopes: a key needs one at least", param="scopes")
    for name in row.adapters or ():
        check_spelling(name, param="adapters")
    if row.adapters is not None and Scope.ADMIN in row.scopes:
        message = "adapters: a key with the scope admin may use all; leave out one of the two"
        raise InvalidRequest(message, param="adapters")
