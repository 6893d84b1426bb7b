"""What tenants keep, and how much of it they may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ..core.errors import Conflict
from .tables import Adapter, Revision, State, Tenant

GONE = (State.REJECTED, State.RETIRED)  # states whose bytes are not kept


@dataclass(frozen=True, slots=True)
class Kept:
    """Adapters, and the bytes behind their revisions; bytes that several share count once."""

    adapters: int
    size: int


def kept(session: Session, tenant_ids: Sequence[int]) -> Mapping[int, Kept]:
    """What each of these tenants keeps."""
    owner = Adapter.tenant_id
    bytes_of = select(owner, Revision.digest, Revision.size).join(Revision.adapter).where(Revision.state.not_in(GONE))
    each = bytes_of.where(owner.in_(tenant_ids)).distinct().subquery()
    sizes = session.execute(select(each.c.tenant_id, func.sum(each.c.size)).group_by(each.c.tenant_id))
    counts = session.execute(select(owner, func.count()).where(owner.in_(tenant_ids)).group_by(owner))
    size_of, count_of = ({row[0]: row[1] for row in rows} for rows in (sizes, counts))
    return {id: Kept(count_of.get(id, 0), int(size_of.get(id, 0))) for id in tenant_ids}


def check_adapters(session: Session, tenant_id: int, *, coming: int = 0) -> None:
    """To be called in a transaction that adds to a tenant's adapters, after they are flushed: raises Conflict when
    they are more, or with the `coming` bytes larger, than it may keep. Those of one tenant take turns from here on."""
    # A new adapter's foreign key already holds the tenant's row as FOR KEY SHARE: a full lock would wait for its likes.
    tenant = session.scalars(select(Tenant).where(Tenant.id == tenant_id).with_for_update(key_share=True)).one()
    if tenant.max_adapters is None and tenant.max_adapter_bytes is None:
        return
    now = kept(session, [tenant_id])[tenant_id]
    if tenant.max_adapters is not None and now.adapters > tenant.max_adapters:
        raise _over(tenant, "max_adapters", f"{tenant.max_adapters} adapters")
    size = now.size + coming
    if tenant.max_adapter_bytes is not None and size > tenant.max_adapter_bytes:
        raise _over(tenant, "max_adapter_bytes", f"{tenant.max_adapter_bytes} bytes, which would be {size}")


def _over(tenant: Tenant, limit: str, most: str) -> Conflict:
    message = f"the tenant {tenant.name!r} may keep {most}; delete some, or have {limit} raised"
    return Conflict(message, param=limit, code="quota_exceeded")
