"""What licence the card of each upload states: cards of the same weights may differ, and the store keeps one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A column; of earlier uploads the report of the gate tells."""
    with op.batch_alter_table("revisions") as table:
        table.add_column(sa.Column("licence", sa.String(200), nullable=True))


def downgrade() -> None:
    """Without it the card in the store speaks for all."""
    with op.batch_alter_table("revisions") as table:
        table.drop_column("licence")
