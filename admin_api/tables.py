"""The registry's tables. Times are seconds since the epoch, as in the API."""

from __future__ import annotations

import enum
import time
from typing import Any

from sqlalchemy import JSON, BigInteger, Enum, ForeignKey, Index, MetaData, String, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

NAMES = {
    "pk": "pk_%(table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}
NAME_LENGTH = 128


def now() -> int:
    """Seconds since the epoch."""
    return int(time.time())


class Base(DeclarativeBase):
    """Constraints have names, so that a later migration can address them."""

    metadata = MetaData(naming_convention=NAMES)


class State(enum.StrEnum):
    """What is desired of a revision."""

    STORED = "stored"  # its bytes are kept; it can be activated
    ACTIVE = "active"  # the adapter's name resolves to it
    RETIRED = "retired"  # history: nothing needs its bytes


class Adapter(Base):
    """A name that requests can use."""

    __tablename__ = "adapters"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH), unique=True)
    description: Mapped[str] = mapped_column(Text, default="")
    created: Mapped[int] = mapped_column(BigInteger, default=now)
    revisions: Mapped[list[Revision]] = relationship(
        back_populates="adapter", order_by="Revision.number", lazy="selectin", cascade="all, delete-orphan"
    )

    @property
    def active(self) -> Revision | None:
        """The revision that the name resolves to."""
        return next((r for r in self.revisions if r.state is State.ACTIVE), None)


class Revision(Base):
    """One immutable set of bytes under a name. Only `state` ever changes."""

    __tablename__ = "revisions"
    __table_args__ = (
        UniqueConstraint("adapter_id", "number"),
        Index(
            "ix_revisions_one_active",
            "adapter_id",
            unique=True,
            sqlite_where=text("state = 'active'"),
            postgresql_where=text("state = 'active'"),
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    adapter_id: Mapped[int] = mapped_column(ForeignKey("adapters.id", ondelete="CASCADE"))
    number: Mapped[int]
    digest: Mapped[str] = mapped_column(String(64), index=True)
    size: Mapped[int] = mapped_column(BigInteger)  # bytes in the store
    rank: Mapped[int]  # the largest
    target_modules: Mapped[list[str]] = mapped_column(JSON)
    notes: Mapped[list[str]] = mapped_column(JSON)  # what a person may want to know about these bytes
    config: Mapped[dict[str, Any]] = mapped_column(JSON)  # adapter_config.json as uploaded
    state: Mapped[State] = mapped_column(
        Enum(State, native_enum=False, length=16, values_callable=lambda kind: [state.value for state in kind])
    )
    created: Mapped[int] = mapped_column(BigInteger, default=now)
    adapter: Mapped[Adapter] = relationship(back_populates="revisions", lazy="joined")


class AuditLine(Base):
    """Who changed what; written in the transaction of the change, never altered."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger, default=now)
    actor: Mapped[str] = mapped_column(String(NAME_LENGTH))
    action: Mapped[str] = mapped_column(String(32))
    adapter: Mapped[str] = mapped_column(String(NAME_LENGTH), index=True)
    revision: Mapped[int | None]
    digest: Mapped[str | None] = mapped_column(String(64))
