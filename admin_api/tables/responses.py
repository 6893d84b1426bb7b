"""Responses that their callers may come back to."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, now


class StoredResponse(Base):
    """One response of /v1/responses with all of its input, earlier turns included, so that it needs no other row."""

    __tablename__ = "responses"
    __table_args__ = (Index("ix_responses_tenant_id_created_size", "tenant_id", "created", "size"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)  # resp_...
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    created: Mapped[int] = mapped_column(BigInteger, default=now)
    size: Mapped[int] = mapped_column(BigInteger)  # characters of both JSON columns, and something for the row
    held_by: Mapped[str | None] = mapped_column(String(64))  # the server that is making it; None: it has ended
    held_until: Mapped[int | None] = mapped_column(BigInteger)
    response: Mapped[dict[str, Any]] = mapped_column(JSON)  # as its caller sees it
    input: Mapped[list[dict[str, Any]]] = mapped_column(JSON)  # items, oldest first
