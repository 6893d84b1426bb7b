"""The database migrates itself, once, whoever starts at the same time, and says what is wrong with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from aril.admin_api.db import Database
from aril.admin_api.migrate import upgrade
from aril.admin_api.tables import Base
from aril.core.errors import InvalidRequest, Unavailable, Unsupported
from sqlalchemy import inspect, text

UPGRADE = """
import sys
from aril.admin_api.db import Database
from aril.admin_api.migrate import upgrade
database = Database(sys.argv[1])
sys.stdin.read()
print(upgrade(database))
"""


def test_the_migrations_build_the_tables_that_the_code_declares(database_url: str) -> None:
    database = Database(database_url)
    upgrade(database)
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    database.close()


def test_an_upgrade_of_a_new_database_is_no_change(database_url: str) -> None:
    database = Database(database_url)
    assert upgrade(database) == upgrade(database)
    database.close()


def test_processes_that_start_at_once_migrate_once(database_url: str) -> None:
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", UPGRADE, database_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for start in starts:  # each waits for its input, so that they go off together
        assert start.stdin is not None
        start.stdin.close()
    for start in starts:
        assert start.wait() == 0, start.stderr and start.stderr.read()
        assert start.stdout is not None
        assert start.stdout.read().strip() == "0001"
        start.stdout.close()
        assert start.stderr is not None
        start.stderr.close()


def test_a_database_of_a_newer_aril_is_refused(database_url: str) -> None:
    database = Database(database_url)
    upgrade(database)
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(Unsupported, match="newer Aril"):
        upgrade(database)
    database.close()


def test_a_failed_migration_leaves_nothing_behind(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(database_url)
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE audit (id INTEGER)"))  # the last table of the migration is in the way
    with pytest.raises(Exception, match="already exists"):
        upgrade(database)
    with database.engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["audit"]
    database.close()


def test_sqlite_writes_through_to_the_disk(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/deep/er/registry.sqlite3")
    with database.engine.connect() as connection:
        values = {name: connection.execute(text(f"PRAGMA {name}")).scalar() for name in PRAGMAS}
    assert values == PRAGMAS
    database.close()


PRAGMAS = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://host/name", "registry.db", ""])
def test_a_database_that_cannot_serve_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidRequest, match="--database-url"):
        Database(url)


def test_a_database_that_is_away_is_unavailable(tmp_path: Path) -> None:
    database = Database(f"postgresql://postgres@/none?host={tmp_path}")
    with pytest.raises(Unavailable, match="does not answer"):
        upgrade(database)
