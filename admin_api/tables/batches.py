"""Files of requests and of answers, and the batches between them."""

from __future__ import annotations

import enum
from typing import Any

from sqlalchemy import JSON, BigInteger, Enum, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from .base import Base, now
from .tenants import Tenant

ID_LENGTH = 48


class BatchState(enum.StrEnum):
    """Where a batch stands, in OpenAI's words. The last four are its ends."""

    VALIDATING = "validating"  # nobody has looked at its lines yet
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"  # every line has its answer
    CANCELLING = "cancelling"  # lines that run are being stopped
    COMPLETED = "completed"
    FAILED = "failed"  # `errors` says why; no line was answered, or its caller may not go on
    EXPIRED = "expired"
    CANCELLED = "cancelled"


UNDER_WAY = (BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.FINALIZING, BatchState.CANCELLING)


class File(Base):
    """A file in pieces, so that every server on the database has it. It is there for its tenant once `complete`."""

    __tablename__ = "files"
    __table_args__ = (Index("ix_files_tenant_id_id", "tenant_id", "id"),)

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)  # file-..., in the order of making
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(Text)
    purpose: Mapped[str] = mapped_column(String(16))  # batch, batch_output
    size: Mapped[int] = mapped_column(BigInteger, default=0)  # bytes of all its pieces
    complete: Mapped[bool] = mapped_column(default=False)
    created: Mapped[int] = mapped_column(BigInteger, default=now)
    expires: Mapped[int | None] = mapped_column(BigInteger)  # from then on it is gone


class FilePiece(Base):
    """Some bytes of a file, between those of lower and of higher numbers. Of an answer file, one line: its number is
    that of the request."""

    __tablename__ = "file_pieces"

    file_id: Mapped[str] = mapped_column(ForeignKey("files.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class Batch(Base):
    """Requests in a file, run one by one. A server is at it (`held_by`, until `held_until`) from its start to its end.

    The answer files are made with it and `complete` at its end; one of them that stays empty is dropped then.
    """

    __tablename__ = "batches"
    __table_args__ = (Index("ix_batches_tenant_id_id", "tenant_id", "id"),)

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)  # batch_..., in the order of making
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    caller: Mapped[str] = mapped_column(String(64))  # whose requests the lines are: a key's id, admin, anyone
    origin: Mapped[str] = mapped_column(String(64))  # the address that it was asked for from
    endpoint: Mapped[str] = mapped_column(String(64))
    input_file_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    output_file_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))  # lines that were answered with a 2xx
    error_file_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))  # all others
    output_expires_after: Mapped[int | None] = mapped_column(BigInteger)  # seconds
    window: Mapped[str] = mapped_column(String(8))
    tags: Mapped[dict[str, str] | None] = mapped_column("metadata", JSON(none_as_null=True))
    state: Mapped[BatchState] = mapped_column(
        Enum(BatchState, native_enum=False, length=16, values_callable=lambda kind: [state.value for state in kind]),
        index=True,
    )
    errors: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    times: Mapped[dict[str, int]] = mapped_column(JSON, default=dict)  # state -> when it came to be so
    model: Mapped[str | None] = mapped_column(Text)  # that its lines name
    total: Mapped[int] = mapped_column(default=0)  # lines
    completed: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    attempts: Mapped[int] = mapped_column(default=0)  # of servers, since a line was last answered
    held_by: Mapped[str | None] = mapped_column(String(64))
    held_until: Mapped[int | None] = mapped_column(BigInteger)
    created: Mapped[int] = mapped_column(BigInteger, default=now)
    expires: Mapped[int] = mapped_column(BigInteger)  # lines that have no answer by then get none
    tenant: Mapped[Tenant] = relationship(lazy="joined", innerjoin=True)

    @property
    def is_over(self) -> bool:
        """Whether it has come to an end."""
        return self.state not in UNDER_WAY
