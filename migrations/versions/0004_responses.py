"""Responses that their callers may come back to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A table of their own."""
    op.create_table(
        "responses",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("held_by", sa.String(64), nullable=True),
        sa.Column("held_until", sa.BigInteger(), nullable=True),
        sa.Column("response", sa.JSON(), nullable=False),
        sa.Column("input", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_responses_tenant_id_tenants", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_responses"),
    )
    op.create_index("ix_responses_tenant_id_created_size", "responses", ["tenant_id", "created", "size"])


def downgrade() -> None:
    """They are lost."""
    op.drop_table("responses")
