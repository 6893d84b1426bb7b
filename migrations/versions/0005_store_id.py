"""Which adapter store belongs to the database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A table of one row, which the next start writes."""
    op.create_table(
        "stores",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("mark", sa.String(256), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_stores"),
    )


def downgrade() -> None:
    """Any store will do again."""
    op.drop_table("stores")
