"""Every query on uploads under way. Each function is a piece of one transaction; none of them commits.

What the parts of a file are, and in which order, is what its row says: a part counts from the moment that its row does.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from ...core.callers import Caller
from ...core.errors import ArilError, Conflict, Forbidden, Misplaced, NotFound, RateLimited
from ..holdings import check_adapters
from ..tables import Arrival, Revision, Stage, now

LIFETIME = 24 * 3600  # seconds after the last part, and after the end
MAX_OPEN = 32  # uploads under way of one tenant
MAX_PARTS = 10_000  # of one file
LEASE = 30  # seconds for which a server has a fetch
OPEN = (Stage.RECEIVING, Stage.FETCHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What shall arrive. `files` are sizes and hex digests; with a `source` there are none yet."""

    name: str
    fields: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]
    source: str | None = None
    sha256: str | None = None


def create(session: Session, caller: Caller, plan: Plan, max_bytes: int) -> Arrival:
    """A new upload, or a fetch that nobody holds. Raises RateLimited when the tenant has too much under way, Conflict
    for what it could not keep."""
    if not caller.may_use(plan.name):
        raise Forbidden(f"this key is not for the adapter {plan.name!r}", param="name")
    size = sum(size for size, _ in plan.files.values())
    check_adapters(session, caller.tenant_id, coming=size)
    _check_room(session, caller, size, max_bytes)
    arrival = Arrival(
        id=f"upload_{secrets.token_hex(12)}",
        tenant_id=caller.tenant_id,
        name=plan.name,
        author=caller.name,
        origin=caller.origin,
        fields=dict(plan.fields),
        files={
            file: {"size": size, "sha256": sha256, "received": 0, "parts": []}
            for file, (size, sha256) in plan.files.items()
        },
        source=plan.source,
        sha256=plan.sha256,
        stage=Stage.RECEIVING if plan.source is None else Stage.FETCHING,
        expires=now() + LIFETIME,
    )
    session.add(arrival)
    session.flush()
    return arrival


def one(session: Session, caller: Caller, id: str, *, lock: bool = False) -> Arrival:
    """An upload of the caller's tenant; raises NotFound."""
    found = session.get(Arrival, id, with_for_update={"of": Arrival} if lock else None)
    if found is None or found.tenant_id != caller.tenant_id or not caller.may_use(found.name):
        raise NotFound(f"no upload {id[:64]!r}", param="id", code="upload_not_found")
    return found


def under_way(session: Session, caller: Caller) -> list[Arrival]:
    """The uploads of the caller's tenant, the newest first."""
    query = select(Arrival).where(Arrival.tenant_id == caller.tenant_id).order_by(Arrival.created.desc(), Arrival.id)
    return [arrival for arrival in session.scalars(query) if caller.may_use(arrival.name)]


def expecting(arrival: Arrival, file: str, offset: int) -> int:
    """How many bytes of `file` are still to come at `offset`. Raises NotFound, Conflict when nothing is received any
    more, and Misplaced when it goes on elsewhere."""
    if arrival.stage is not Stage.RECEIVING:
        raise Conflict(f"upload {arrival.id} is {arrival.stage.value}", code="upload_closed")
    state = arrival.files.get(file)
    if state is None:
        known = ", ".join(sorted(arrival.files))
        raise NotFound(f"upload {arrival.id} has no file {file[:64]!r}; there are {known}", param="file")
    if offset != state["received"]:
        raise Misplaced(
            f"{file} of upload {arrival.id} goes on at {state['received']}, not at {offset}", offset=state["received"]
        )
    if len(state["parts"]) >= MAX_PARTS:
        raise Conflict(f"{file} of upload {arrival.id} has come in {MAX_PARTS} parts, which is the most; begin anew")
    return int(state["size"]) - offset


def add_part(session: Session, caller: Caller, id: str, file: str, part: str, offset: int, size: int) -> Arrival:
    """Count a part that is durable. Raises what `expecting` raises: two may have brought the same one."""
    arrival = one(session, caller, id, lock=True)
    expecting(arrival, file, offset)
    state = arrival.files[file]
    state = {**state, "received": offset + size, "parts": [*state["parts"], part]}
    arrival.files = {**arrival.files, file: state}
    arrival.expires = now() + LIFETIME
    return arrival


def check_whole(arrival: Arrival) -> None:
    """Raises Conflict for an upload of which something is missing."""
    missing = [
        f"{file} is at {state['received']} of {state['size']}"
        for file, state in sorted(arrival.files.items())
        if state["received"] != state["size"]
    ]
    if missing:
        raise Conflict(f"upload {arrival.id} is not complete: {'; '.join(missing)}", code="upload_incomplete")


def complete(session: Session, id: str, revision: Revision) -> None:
    """It has become `revision`; raises Conflict, so that there is no revision either, when somebody has deleted it."""
    arrival = session.get(Arrival, id, with_for_update={"of": Arrival})
    if arrival is None:
        raise Conflict(f"upload {id} has been deleted meanwhile", code="upload_closed")
    if arrival.stage is Stage.COMPLETE:  # another request has completed it at the same time
        return
    arrival.stage, arrival.revision, arrival.digest = Stage.COMPLETE, revision.number, revision.digest
    _end(arrival)


def fail(session: Session, id: str, error: ArilError) -> None:
    """It will never become anything."""
    arrival = session.get(Arrival, id, with_for_update={"of": Arrival})
    if arrival is not None and arrival.stage in OPEN:
        problem = {"message": error.message, "code": error.code, "param": error.param}
        arrival.stage, arrival.problem = Stage.FAILED, problem | {"problems": list(error.problems)}
        _end(arrival)


def remove(session: Session, caller: Caller, id: str) -> None:
    """Forget it; raises NotFound."""
    session.delete(one(session, caller, id, lock=True))


def claim(session: Session, server: str, id: str | None = None, but: Collection[int] = ()) -> Arrival | None:
    """A fetch that no living server has, or that one, now held by `server` for LEASE seconds; of no tenant in `but`."""
    free = or_(Arrival.held_until.is_(None), Arrival.held_until < now())
    query = select(Arrival).where(Arrival.stage == Stage.FETCHING, free, Arrival.tenant_id.not_in(but))
    query = query.order_by(Arrival.created)
    query = query.where(Arrival.id == id) if id is not None else query
    found = session.scalars(query.limit(1).with_for_update(of=Arrival, skip_locked=True)).first()
    if found is not None:
        found.held_by, found.held_until = server, now() + LEASE
    return found


def renew(session: Session, server: str, id: str) -> bool:
    """Hold it for LEASE seconds more; False when another server has it or it is gone."""
    found = session.get(Arrival, id, with_for_update={"of": Arrival})
    if found is None or found.held_by != server or found.stage is not Stage.FETCHING:
        return False
    found.held_until = now() + LEASE
    return True


def let_go(session: Session) -> None:
    """Let nobody hold a fetch; right where all servers that could are known to be dead."""
    for arrival in session.scalars(select(Arrival).where(Arrival.stage == Stage.FETCHING)):
        arrival.held_until = None


def expire(session: Session) -> int:
    """Forget what nobody came back for, and say how much that was."""
    late = session.scalars(select(Arrival).where(Arrival.expires < now()).with_for_update(of=Arrival)).all()
    for arrival in late:
        session.delete(arrival)
    return len(late)


def receiving(session: Session) -> set[str]:
    """The uploads whose parts are needed."""
    return set(session.scalars(select(Arrival.id).where(Arrival.stage == Stage.RECEIVING)))


def _check_room(session: Session, caller: Caller, size: int, max_bytes: int) -> None:
    others = session.scalars(
        select(Arrival).where(Arrival.tenant_id == caller.tenant_id, Arrival.stage.in_(OPEN))
    ).all()
    total = size + sum(state["size"] for arrival in others for state in arrival.files.values())
    if len(others) >= MAX_OPEN or (others and total > max_bytes):
        raise RateLimited(
            f"tenant {caller.tenant} has {len(others)} uploads under way, of at most {MAX_OPEN} and {max_bytes} bytes; "
            "complete or delete some",
            retry_after=60,
            code="too_many_uploads",
        )


def _end(arrival: Arrival) -> None:
    arrival.held_by = arrival.held_until = None
    arrival.expires = now() + LIFETIME
