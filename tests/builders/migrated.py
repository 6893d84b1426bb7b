"""Databases that have their tables already, at the price of the statements that make them: Alembic takes a quarter of a
second more to find out which. That migrations work is what tests/admin/test_database.py claims, on empty ones."""

from __future__ import annotations

from typing import Any

from aril.admin_api.db import Database
from aril.admin_api.migrate import upgrade
from sqlalchemy import Connection, event

OURS = ("SELECT", "PRAGMA", "BEGIN")  # how statements begin that change nothing there


class Migrated:
    """What changed an empty database as it was migrated; another one of the kind can have the same."""

    def __init__(self, empty_url: str) -> None:
        """Migrate that database."""
        self._statements: list[tuple[str, Any]] = []  # with their parameters
        database = Database(empty_url)
        event.listen(database.engine, "before_cursor_execute", self._note)
        upgrade(database)
        database.close()

    def repeat(self, empty_url: str) -> None:
        """Make of another database what the first has become."""
        database = Database(empty_url)
        with database.engine.begin() as connection:
            for statement, parameters in self._statements:
                connection.exec_driver_sql(statement, parameters)
        database.close()

    def _note(self, _connection: Connection, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if not statement.lstrip().upper().startswith(OURS):
            self._statements.append((statement, parameters))
