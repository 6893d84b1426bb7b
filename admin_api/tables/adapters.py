"""Adapters, their immutable revisions, and the aliases that requests go through."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, BigInteger, Enum, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from .base import NAME_LENGTH, Base, now

if TYPE_CHECKING:
    from .tenants import Tenant

DEFAULT_ALIAS = "default"  # what the bare name means


class State(enum.StrEnum):
    """Where a revision stands. Its bytes are kept in all states but the last two."""

    UPLOADED = "uploaded"  # durable; nobody has looked at the numbers yet
    CHECKING = "checking"  # a server is at it (`checked_by`, until `checked_until`)
    READY = "ready"  # requests may use it
    REJECTED = "rejected"  # `report` says why
    RETIRED = "retired"  # history


class Adapter(Base):
    """A name that requests of its tenant can use; of every tenant, when public."""

    __tablename__ = "adapters"
    __table_args__ = (
        UniqueConstraint("tenant_id", "name"),
        Index("ix_adapters_public", "name", unique=True, sqlite_where=text("public"), postgresql_where=text("public")),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(NAME_LENGTH), index=True)
    description: Mapped[str] = mapped_column(Text, default="")
    public: Mapped[bool] = mapped_column(default=False)
    version: Mapped[int] = mapped_column(default=1)  # grows with every change of the row; its ETag
    created: Mapped[int] = mapped_column(BigInteger, default=now)
    tenant: Mapped[Tenant] = relationship(lazy="joined", innerjoin=True)
    revisions: Mapped[list[Revision]] = relationship(
        back_populates="adapter", order_by="Revision.number", lazy="selectin", cascade="all, delete-orphan"
    )
    aliases: Mapped[list[Alias]] = relationship(
        back_populates="adapter", order_by="Alias.name", lazy="selectin", cascade="all, delete-orphan"
    )

    def alias(self, name: str) -> Alias | None:
        """The alias of that name."""
        return next((alias for alias in self.aliases if alias.name == name), None)

    @property
    def active(self) -> Revision | None:
        """The revision that the bare name resolves to, of several the heaviest."""
        alias = self.alias(DEFAULT_ALIAS)
        number = alias.heaviest if alias else None
        return next((r for r in self.revisions if r.number == number), None)


class Revision(Base):
    """One immutable set of bytes under a name. Only what concerns its state ever changes."""

    __tablename__ = "revisions"
    __table_args__ = (
        UniqueConstraint("adapter_id", "number"),
        Index("ix_revisions_state", "state"),
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
    licence: Mapped[str | None] = mapped_column(String(200))  # as the uploaded card states it
    author: Mapped[str] = mapped_column(String(NAME_LENGTH), default="")  # who uploaded it, as the audit names them
    note: Mapped[str] = mapped_column(Text, default="")  # the uploader's own words
    tags: Mapped[list[str]] = mapped_column(JSON, default=list)
    source: Mapped[str] = mapped_column(Text, default="")  # upload, or the URL it was fetched from
    base: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)  # fingerprint of the base it was checked on
    golden: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)  # prompts with what must come
    forced: Mapped[bool] = mapped_column(default=False)  # uploaded in spite of another base's name
    activate: Mapped[bool | None]  # once READY: True moves the default alias here, None only sets a missing one
    state: Mapped[State] = mapped_column(
        Enum(State, native_enum=False, length=16, values_callable=lambda kind: [state.value for state in kind])
    )
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))  # of the gate
    checked_by: Mapped[str | None] = mapped_column(String(64))  # the server that is checking it
    checked_until: Mapped[int | None] = mapped_column(BigInteger)  # when another may take over
    attempts: Mapped[int] = mapped_column(default=0)  # how often a check was begun, since it was uploaded
    changed: Mapped[int] = mapped_column(BigInteger, default=now)  # when its state last did
    created: Mapped[int] = mapped_column(BigInteger, default=now)
    adapter: Mapped[Adapter] = relationship(back_populates="revisions")


class Alias(Base):
    """A name for a revision, or for several by weight."""

    __tablename__ = "aliases"
    __table_args__ = (UniqueConstraint("adapter_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    adapter_id: Mapped[int] = mapped_column(ForeignKey("adapters.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(64))
    weights: Mapped[dict[str, int]] = mapped_column(JSON)  # revision number (a JSON key) -> weight above 0
    sticky_header: Mapped[str | None] = mapped_column(String(64))  # what sticks a caller; None: the field `user`
    shadow: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))  # {"revision": 4, "share": 0.1}
    bounds: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))  # when to roll back by itself
    history: Mapped[list[dict[str, int]]] = mapped_column(JSON, default=list)  # earlier weights, oldest first
    version: Mapped[int] = mapped_column(default=1)  # grows with every change; its ETag
    created: Mapped[int] = mapped_column(BigInteger, default=now)
    changed: Mapped[int] = mapped_column(BigInteger, default=now)
    adapter: Mapped[Adapter] = relationship(back_populates="aliases")

    @property
    def heaviest(self) -> int:
        """The revision that most requests go to, of equals the oldest."""
        return min((int(number) for number in self.weights), key=lambda n: (-self.weights[str(n)], n))

    @property
    def named(self) -> set[int]:
        """The revisions that it leads to, its shadow included."""
        shadow = {int(self.shadow["revision"])} if self.shadow else set()
        return {int(number) for number in self.weights} | shadow

    @property
    def previous(self) -> set[int]:
        """The revisions that it would be taken back to."""
        return {int(number) for number in self.history[-1]} if self.history else set()
