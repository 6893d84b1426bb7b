"""Files in pieces, and batches of requests."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ID_LENGTH = 48


def upgrade() -> None:
    """New tables alone."""
    _make_files()
    _make_batches()


def downgrade() -> None:
    """Without them; all files and batches are lost."""
    for name in ("batches", "file_pieces", "files"):
        op.drop_table(name)


def _text(name: str, length: int | None = None, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length) if length else sa.Text(), nullable=nullable)


def _number(name: str, *, big: bool = False, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger() if big else sa.Integer(), nullable=nullable)


def _json(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(), nullable=nullable)


def _owner(table: str, column: str, other: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_{column}_{other}"
    return sa.ForeignKeyConstraint([column], [f"{other}.id"], name=name, ondelete="CASCADE")


def _make_files() -> None:
    op.create_table(
        "files",
        _text("id", ID_LENGTH),
        _number("tenant_id"),
        _text("name"),
        _text("purpose", 16),
        _number("size", big=True),
        sa.Column("complete", sa.Boolean(), nullable=False),
        _number("created", big=True),
        _number("expires", big=True, nullable=True),
        _owner("files", "tenant_id", "tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
    )
    op.create_index("ix_files_tenant_id_id", "files", ["tenant_id", "id"])
    op.create_table(
        "file_pieces",
        _text("file_id", ID_LENGTH),
        _number("number"),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        _owner("file_pieces", "file_id", "files"),
        sa.PrimaryKeyConstraint("file_id", "number", name="pk_file_pieces"),
    )


def _make_batches() -> None:
    op.create_table(
        "batches",
        _text("id", ID_LENGTH),
        _number("tenant_id"),
        _text("caller", 64),
        _text("origin", 64),
        _text("endpoint", 64),
        _text("input_file_id", ID_LENGTH),
        _text("output_file_id", ID_LENGTH, nullable=True),
        _text("error_file_id", ID_LENGTH, nullable=True),
        _number("output_expires_after", big=True, nullable=True),
        _text("window", 8),
        _json("metadata", nullable=True),
        _text("state", 16),
        _json("errors", nullable=True),
        _json("times"),
        _text("model", nullable=True),
        *(_number(name) for name in ("total", "completed", "failed")),
        *(_number(name, big=True) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")),
        _number("attempts"),
        _text("held_by", 64, nullable=True),
        _number("held_until", big=True, nullable=True),
        _number("created", big=True),
        _number("expires", big=True),
        _owner("batches", "tenant_id", "tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
    )
    op.create_index("ix_batches_tenant_id_id", "batches", ["tenant_id", "id"])
    op.create_index("ix_batches_state", "batches", ["state"])
