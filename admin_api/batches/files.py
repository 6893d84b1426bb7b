"""Files in the database. Each function is a piece of one transaction; none of them commits.

The bytes lie in rows, so that every server on the database has them and a backup of it is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.orm import Session

from ...core.errors import Conflict, NotFound
from ..tables import UNDER_WAY, Batch, File, FilePiece, Tenant, now
from .ids import new_id

PREFIX = "file-"
INPUT, OUTPUT = "batch", "batch_output"  # purposes
PIECE = 1 << 20  # bytes of an uploaded file in one row
PIECES_AT_ONCE = 16  # of answers, each a line
MOST_FILES = 1000  # of one tenant
MOST_BYTES = 8 << 30  # of all files of one tenant
ABANDONED_SECONDS = 3600  # since an upload whose server ended in the middle of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A page of a list."""

    purpose: str | None = None
    after: str | None = None
    limit: int = 10_000
    descending: bool = True


def begin(
    session: Session, tenant_id: int, name: str, purpose: str, *, size: int = 0, expires: int | None = None
) -> File:
    """A file that nobody sees before it is `complete`, with room for the `size` bytes that an upload has; raises
    Conflict when the tenant keeps too many."""
    if purpose == INPUT:
        _check_room(session, tenant_id, size)
    made = File(id=new_id(PREFIX), tenant_id=tenant_id, name=name, purpose=purpose, size=size, expires=expires)
    session.add(made)
    session.flush()
    return made


def append(session: Session, id: str, number: int, data: bytes) -> None:
    """Add a piece of an upload; raises Conflict when the file has gone meanwhile."""
    found = session.get(File, id, with_for_update=True)
    if found is None:
        raise Conflict(f"the file {id} was deleted while it came")
    session.add(FilePiece(file_id=id, number=number, data=data))


def complete(session: Session, id: str) -> File:
    """Let its tenant see it from now on."""
    found = session.get(File, id, with_for_update=True)
    if found is None:
        raise Conflict(f"the file {id} was deleted while it came")
    found.complete = True
    return found


def files(session: Session, tenant_id: int, asked: Asked) -> Sequence[File]:
    """Those of a tenant, one more than the limit if there are more."""
    query = select(File).where(_visible(tenant_id)).limit(asked.limit + 1)
    query = query.order_by(File.id.desc() if asked.descending else File.id)
    if asked.purpose is not None:
        query = query.where(File.purpose == asked.purpose)
    if asked.after is not None:
        query = query.where(File.id < asked.after if asked.descending else File.id > asked.after)
    return session.scalars(query).all()


def file(session: Session, tenant_id: int, id: str, param: str | None = None, *, lock: bool = False) -> File:
    """One of them; raises NotFound, with the same words for that of another tenant."""
    query = select(File).where(File.id == id, _visible(tenant_id))
    found = session.scalars(query.with_for_update() if lock else query).one_or_none()
    if found is None:
        raise NotFound(f"no file {id[:64]!r}", param=param, code="file_not_found")
    return found


def remove(session: Session, tenant_id: int, id: str) -> None:
    """Delete it; raises Conflict while a batch reads it."""
    found = file(session, tenant_id, id, lock=True)
    reading = select(Batch.id).where(Batch.input_file_id == id, Batch.state.in_(UNDER_WAY)).limit(1)
    batch = session.scalar(reading)
    if batch is not None:
        raise Conflict(f"the batch {batch} reads this file; cancel it first, or wait for its end", code="file_in_use")
    session.delete(found)


def pieces(session: Session, id: str, after: int, limit: int = PIECES_AT_ONCE) -> Sequence[tuple[int, bytes]]:
    """The next numbers and bytes, after a number."""
    query = select(FilePiece.number, FilePiece.data).where(FilePiece.file_id == id, FilePiece.number > after)
    return [(number, data) for number, data in session.execute(query.order_by(FilePiece.number).limit(limit))]


def numbers(session: Session, ids: Sequence[str | None]) -> set[int]:
    """Of the pieces of these files."""
    return set(session.scalars(select(FilePiece.number).where(FilePiece.file_id.in_([id for id in ids if id]))))


def sweep(session: Session) -> None:
    """Drop what has expired, unless a batch reads it, and what never came whole."""
    read = select(Batch.input_file_id).where(Batch.state.in_(UNDER_WAY))
    expired = File.complete & (File.expires <= now()) & File.id.not_in(read)
    torn = ~File.complete & (File.purpose == INPUT) & (File.created < now() - ABANDONED_SECONDS)
    session.execute(delete(File).where(or_(expired, torn)))


def _visible(tenant_id: int) -> ColumnElement[bool]:
    return and_(File.tenant_id == tenant_id, File.complete, or_(File.expires.is_(None), File.expires > now()))


def _check_room(session: Session, tenant_id: int, more: int) -> None:
    owner = session.scalars(select(Tenant).where(Tenant.id == tenant_id).with_for_update(key_share=True)).one_or_none()
    if owner is None:
        raise NotFound("the tenant of this key is gone", code="tenant_not_found")
    count, size = session.execute(
        select(func.count(), func.coalesce(func.sum(File.size), 0)).where(File.tenant_id == tenant_id)
    ).one()
    if count >= MOST_FILES:
        raise _over(f"the tenant keeps {count} files, and {MOST_FILES} is the most")
    if size + more > MOST_BYTES:
        raise _over(f"the tenant's files hold {size} bytes, this one has {more}, and {MOST_BYTES} is the most")


def _over(words: str) -> Conflict:
    return Conflict(f"{words}; delete some", code="quota_exceeded")
