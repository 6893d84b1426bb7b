"""Adapters on their way in: uploads that come in parts, and what is fetched from a source."""

from __future__ import annotations

import enum
from typing import Any

from sqlalchemy import JSON, BigInteger, Enum, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from .base import NAME_LENGTH, Base, now
from .tenants import Tenant


class Stage(enum.StrEnum):
    """How far it has come."""

    RECEIVING = "receiving"  # parts lie in the store
    FETCHING = "fetching"  # a server is at it (`held_by`, until `held_until`)
    COMPLETE = "complete"  # it is `revision`
    FAILED = "failed"  # `problem` says why


class Arrival(Base):
    """One upload or fetch. It is kept until `expires`, when it is complete or failed only to be looked at."""

    __tablename__ = "uploads"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # upload_...
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))  # of the adapter
    author: Mapped[str] = mapped_column(String(NAME_LENGTH))  # who asked for it, as the audit names them
    origin: Mapped[str] = mapped_column(String(64))  # the address that they asked from
    fields: Mapped[dict[str, Any]] = mapped_column(JSON)  # what the uploader says and wants
    files: Mapped[dict[str, Any]] = mapped_column(JSON)  # file -> {"size", "sha256", "received", "parts"}
    source: Mapped[str | None] = mapped_column(Text)  # the URL to fetch
    sha256: Mapped[str | None] = mapped_column(String(64))  # of what is fetched
    stage: Mapped[Stage] = mapped_column(
        Enum(Stage, native_enum=False, length=16, values_callable=lambda kind: [stage.value for stage in kind])
    )
    problem: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    revision: Mapped[int | None]
    digest: Mapped[str | None] = mapped_column(String(64))
    held_by: Mapped[str | None] = mapped_column(String(64))
    held_until: Mapped[int | None] = mapped_column(BigInteger)
    created: Mapped[int] = mapped_column(BigInteger, default=now)
    expires: Mapped[int] = mapped_column(BigInteger)
    tenant: Mapped[Tenant] = relationship(lazy="joined")
