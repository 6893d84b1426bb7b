"""Alembic's entry: runs inside the transaction of the connection that `aril.admin_api.migrate` hands over."""

from __future__ import annotations

from alembic import context
from aril.admin_api.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
with context.begin_transaction():
    context.run_migrations()
