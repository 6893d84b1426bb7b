"""Tenants, and the keys that act for them."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column, relationship

from .base import NAME_LENGTH, Base, now


class Tenant(Base):
    """Who owns adapters and keys. The first one, "default", is there from the beginning. None is no limit."""

    __tablename__ = "tenants"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH), unique=True)
    requests_per_minute: Mapped[int | None]
    tokens_per_minute: Mapped[int | None]
    concurrent_requests: Mapped[int | None]
    max_adapters: Mapped[int | None]
    max_adapter_bytes: Mapped[int | None] = mapped_column(BigInteger)
    version: Mapped[int] = mapped_column(default=1)  # grows with every change; its ETag
    created: Mapped[int] = mapped_column(BigInteger, default=now)
    keys: Mapped[list[Key]] = relationship(back_populates="tenant", cascade="all, delete-orphan")


class Key(Base):
    """A bearer key. What is kept of it is a digest and its first characters, to tell it from others."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # key_..., what people and the audit call it
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    digest: Mapped[str] = mapped_column(String(64), unique=True)  # hex SHA-256
    shown: Mapped[str] = mapped_column(String(16))
    scopes: Mapped[list[str]] = mapped_column(JSON)  # of core.callers.Scope
    adapters: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))  # names it may use; None: all
    requests_per_minute: Mapped[int | None]
    tokens_per_minute: Mapped[int | None]
    concurrent_requests: Mapped[int | None]
    version: Mapped[int] = mapped_column(default=1)  # grows with every change; its ETag
    created: Mapped[int] = mapped_column(BigInteger, default=now)
    expires: Mapped[int | None] = mapped_column(BigInteger)
    revoked: Mapped[int | None] = mapped_column(BigInteger)
    tenant: Mapped[Tenant] = relationship(back_populates="keys", lazy="joined")
