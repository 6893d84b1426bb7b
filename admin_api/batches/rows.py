"""Batches in the database: asked for, run by one server at a time, ended. Pieces of transactions; none commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, case, delete, func, or_, select, true, update
from sqlalchemy.orm import Session, aliased

from ...core.batch_lines import Reply
from ...core.callers import Caller
from ...core.errors import Conflict, InvalidRequest, NotFound, RateLimited
from ..tables import UNDER_WAY, Batch, BatchState, File, FilePiece, now
from . import files
from .ids import new_id

PREFIX = "batch_"
WINDOW_SECONDS = 24 * 3600
LEASE_SECONDS = 15  # after which another server goes on with what this one was at
MOST_UNDER_WAY = 100  # batches of one tenant
MOST_AT_ONCE = 4  # of one tenant's batches, on all servers: another tenant finds a server that has room
KEPT_SECONDS = 90 * 24 * 3600  # after its making a batch is forgotten; its files stay until they are deleted or expire
ANSWERING = (BatchState.IN_PROGRESS, BatchState.CANCELLING)  # in which an answer that comes is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a caller asks for."""

    endpoint: str
    input_file_id: str
    window: str
    tags: Mapping[str, str] | None = None
    output_expires_after: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A batch that a server is at, as its claim found it."""

    batch: Batch
    server: str


def create(session: Session, caller: Caller, wanted: Wanted) -> Batch:
    """A new batch of the caller's. Raises NotFound for its file, RateLimited while too many are under way."""
    read = files.file(session, caller.tenant_id, wanted.input_file_id, "input_file_id", lock=True)
    if read.purpose != files.INPUT:
        message = f"input_file_id: a file of the purpose {files.INPUT!r} is needed, and this is one of {read.purpose!r}"
        raise InvalidRequest(message, param="input_file_id")
    waiting = select(func.count()).where(Batch.tenant_id == caller.tenant_id, Batch.state.in_(UNDER_WAY))
    if (session.scalar(waiting) or 0) >= MOST_UNDER_WAY:
        message = f"{MOST_UNDER_WAY} batches of the tenant {caller.tenant!r} are under way, the most there may be"
        raise RateLimited(message, retry_after=60, code="too_many_batches")
    id = new_id(PREFIX)
    answers = [
        files.begin(session, caller.tenant_id, f"{id}_{kind}.jsonl", files.OUTPUT).id for kind in ("output", "error")
    ]
    made = Batch(
        id=id,
        tenant_id=caller.tenant_id,
        caller=caller.name,
        origin=caller.origin[:64],
        endpoint=wanted.endpoint,
        input_file_id=read.id,
        output_file_id=answers[0],
        error_file_id=answers[1],
        output_expires_after=wanted.output_expires_after,
        window=wanted.window,
        tags=None if wanted.tags is None else dict(wanted.tags),
        state=BatchState.VALIDATING,
        created=now(),
        expires=now() + WINDOW_SECONDS,
    )
    session.add(made)
    session.flush()
    return made


def batches(session: Session, tenant_id: int, after: str | None, limit: int) -> Sequence[Batch]:
    """Those of a tenant, the newest first; one more than the limit if there are more."""
    query = select(Batch).where(Batch.tenant_id == tenant_id).order_by(Batch.id.desc()).limit(limit + 1)
    return session.scalars(query if after is None else query.where(Batch.id < after)).all()


def batch(session: Session, tenant_id: int, id: str, *, lock: bool = False) -> Batch:
    """One of them; raises NotFound, with the same words for that of another tenant."""
    query = select(Batch).where(Batch.id == id, Batch.tenant_id == tenant_id)
    found = session.scalars(query.with_for_update(of=Batch) if lock else query).one_or_none()
    if found is None:
        raise NotFound(f"no batch {id[:64]!r}", code="batch_not_found")
    return found


def cancel(session: Session, tenant_id: int, id: str) -> Batch:
    """Have it stop; raises Conflict where it has ended. Asked again, the answer is the same."""
    found = batch(session, tenant_id, id, lock=True)
    if found.state not in UNDER_WAY:
        raise Conflict(f"the batch {id} has ended: it is {found.state.value}", code="batch_ended")
    if found.state is not BatchState.CANCELLING:
        _become(found, BatchState.CANCELLING)
    return found


def claim(session: Session, server: str) -> Batch | None:
    """The batch that is to be run next, from now on by `server`; None when there is none.

    Of the tenants who wait, that is the oldest of whoever has fewest under way.
    """
    other = aliased(Batch)
    is_busy = and_(other.state.in_(UNDER_WAY), other.held_until >= now(), other.tenant_id == Batch.tenant_id)
    busy = select(func.count(other.id)).where(is_busy).scalar_subquery()
    free = or_(Batch.held_until.is_(None), Batch.held_until < now())
    waiting = select(Batch).where(Batch.state.in_(UNDER_WAY), free, busy < MOST_AT_ONCE).order_by(busy, Batch.id)
    found = session.scalars(waiting.limit(1).with_for_update(of=Batch, skip_locked=True)).first()
    if found is not None:
        found.held_by, found.held_until = server, now() + LEASE_SECONDS
        found.attempts += 1
    return found


def abandon_all(session: Session) -> None:
    """No server is left that runs anything: whatever one was at can be claimed now."""
    session.execute(update(Batch).where(Batch.held_until.is_not(None)).values(held_by=None, held_until=None))


def release(session: Session, server: str, id: str | None = None) -> None:
    """Others may go on with one batch of this server, or with all, at once; that counts as no failed attempt."""
    mine = update(Batch).where(Batch.held_by == server, true() if id is None else Batch.id == id)
    attempts = case((Batch.attempts > 0, Batch.attempts - 1), else_=0)
    session.execute(mine.values(held_by=None, held_until=None, attempts=attempts))


def renew(session: Session, held: Held) -> BatchState:
    """Go on; returns the state, which a cancel may have changed. Raises Conflict when it is not ours any more."""
    found = _held(session, held, UNDER_WAY)
    found.held_until = now() + LEASE_SECONDS
    return found.state


def begin(session: Session, held: Held, total: int, model: str | None) -> Batch:
    """Its lines are sound, and will be answered, unless it was cancelled meanwhile."""
    found = _held(session, held, (BatchState.VALIDATING, BatchState.CANCELLING))
    found.total, found.model = total, model
    if found.state is BatchState.VALIDATING:
        _become(found, BatchState.IN_PROGRESS)
    return found


def record(session: Session, held: Held, replies: Iterable[Reply]) -> None:
    """Keep the answers to some lines. Raises Conflict when the batch is not ours any more."""
    found = _held(session, held, ANSWERING)
    for reply in replies:
        file_id = found.output_file_id if reply.ok else found.error_file_id
        session.add(FilePiece(file_id=file_id, number=reply.number, data=reply.text))
        session.execute(update(File).where(File.id == file_id).values(size=File.size + len(reply.text)))
        found.completed += reply.ok
        found.failed += not reply.ok
        found.prompt_tokens += reply.prompt_tokens
        found.cached_tokens += reply.cached_tokens
        found.completion_tokens += reply.completion_tokens
    found.attempts = 0


def finalize(session: Session, held: Held) -> None:
    """Every line has its answer."""
    found = _held(session, held, UNDER_WAY)
    if found.state is BatchState.IN_PROGRESS:
        _become(found, BatchState.FINALIZING)


def end(session: Session, held: Held, state: BatchState, errors: Sequence[Mapping[str, Any]] = ()) -> Batch:
    """It is over, in `state` unless it was cancelled meanwhile. The answers that there are can be read from now on; a
    file without any is dropped."""
    found = _held(session, held, UNDER_WAY)
    _become(found, BatchState.CANCELLED if found.state is BatchState.CANCELLING else state)
    found.errors = [dict(error) for error in errors] or None
    found.held_by = found.held_until = None
    found.output_file_id = _closed(session, found, found.output_file_id)
    found.error_file_id = _closed(session, found, found.error_file_id)
    return found


def sweep(session: Session) -> None:
    """Forget what ended long ago."""
    old = Batch.created < now() - KEPT_SECONDS
    session.execute(delete(Batch).where(old, Batch.state.not_in(UNDER_WAY)))


def _become(found: Batch, state: BatchState) -> None:
    found.state = state
    found.times = {**found.times, state.value: now()}


def _closed(session: Session, of: Batch, file_id: str | None) -> str | None:
    found = session.get(File, file_id) if file_id is not None else None
    if found is None:
        return None
    if not found.size:
        session.delete(found)
        return None
    found.complete = True
    if of.output_expires_after is not None:
        found.expires = now() + of.output_expires_after
    return found.id


def _held(session: Session, held: Held, states: Sequence[BatchState]) -> Batch:
    query = select(Batch).where(Batch.id == held.batch.id).with_for_update(of=Batch)
    found = session.scalars(query.execution_options(populate_existing=True)).one_or_none()
    if found is None or found.held_by != held.server or found.state not in states:
        raise Conflict(f"the batch {held.batch.id} is not run by this server any more")
    return found
