"""What is only ever added to or counted up: audit, usage and limits, answers to repeated writes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from .base import NAME_LENGTH, Base, now


class AuditLine(Base):
    """Who changed what; written in the transaction of the change, never altered. Lines are chained by hash.

    Ids grow in the order of commits, so the largest one tells replicas whether anything changed.
    """

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_tenant_subject", "tenant", "subject"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger, default=now)
    tenant: Mapped[str] = mapped_column(String(NAME_LENGTH))  # whose thing was changed
    actor: Mapped[str] = mapped_column(String(NAME_LENGTH))  # a key's id, admin, local, or a server itself
    origin: Mapped[str] = mapped_column(String(64), default="")  # the address that the change came from
    kind: Mapped[str] = mapped_column(String(16))  # one of audit.Kind
    subject: Mapped[str] = mapped_column(String(2 * NAME_LENGTH))  # name, name@alias, key id
    action: Mapped[str] = mapped_column(String(32))
    revision: Mapped[int | None]
    digest: Mapped[str | None] = mapped_column(String(64))  # of the revision's bytes
    before: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    hash: Mapped[str] = mapped_column(String(64))  # over this line and the hash of the one before


class Usage(Base):
    """What one key used of one revision on one day (UTC); the base is revision 0 of its own name."""

    __tablename__ = "usage"

    day: Mapped[str] = mapped_column(String(10), primary_key=True)  # 2026-11-30
    tenant: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    model: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    requests: Mapped[int] = mapped_column(BigInteger)
    errors: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)


class Flush(Base):
    """How far a server has written its usage: the number of its last batch, so that none is counted twice."""

    __tablename__ = "flushes"

    server: Mapped[str] = mapped_column(String(32), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[int] = mapped_column(BigInteger)


class Spending(Base):
    """What a limited tenant or key has used of its limits on one server, as of `at`: in the last minute, and now."""

    __tablename__ = "spending"

    server: Mapped[str] = mapped_column(String(32), primary_key=True)
    subject: Mapped[str] = mapped_column(String(NAME_LENGTH + 8), primary_key=True)  # a key's id, or tenant:NAME
    requests: Mapped[int] = mapped_column(BigInteger)
    tokens: Mapped[int] = mapped_column(BigInteger)
    running: Mapped[int] = mapped_column(BigInteger)
    reserved: Mapped[int] = mapped_column(BigInteger)  # tokens
    at: Mapped[int] = mapped_column(BigInteger)


class Reply(Base):
    """The answer to a write that came with an Idempotency-Key; without a status the write is under way."""

    __tablename__ = "replies"

    caller: Mapped[str] = mapped_column(String(64), primary_key=True)  # a key's id, or admin
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request: Mapped[str] = mapped_column(String(64))  # digest of method, path and body
    status: Mapped[int | None]
    headers: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    body: Mapped[str | None] = mapped_column(Text)
    created: Mapped[int] = mapped_column(BigInteger, default=now)
