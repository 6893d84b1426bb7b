"""The database migrates itself, once, whoever starts at the same time, and says what is wrong with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from aril.admin_api.chain import verify
from aril.admin_api.db import Database
from aril.admin_api.migrate import _config, newest, upgrade
from aril.admin_api.tables import Adapter, AuditLine, Base
from aril.core.errors import InvalidRequest, Unavailable, Unsupported
from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.orm import Session

UPGRADE = """
import sys
from aril.admin_api.db import Database
from aril.admin_api.migrate import upgrade
database = Database(sys.argv[1])
sys.stdin.read()
print(upgrade(database))
"""


def test_the_migrations_build_the_tables_that_the_code_declares(empty_url: str) -> None:
    database = Database(empty_url)
    upgrade(database)
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    database.close()


def test_an_upgrade_of_a_new_database_is_no_change(empty_url: str) -> None:
    database = Database(empty_url)
    assert upgrade(database) == upgrade(database)
    database.close()


def test_processes_that_start_at_once_migrate_once(empty_url: str) -> None:
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", UPGRADE, empty_url],
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
        assert start.stdout.read().strip() == newest()
        start.stdout.close()
        assert start.stderr is not None
        start.stderr.close()


def test_a_database_of_a_newer_aril_is_refused(empty_url: str) -> None:
    database = Database(empty_url)
    upgrade(database)
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(Unsupported, match="newer Aril"):
        upgrade(database)
    database.close()


def test_a_failed_migration_leaves_nothing_behind(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(empty_url)
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


def test_a_reader_waits_for_no_writer(empty_url: str) -> None:
    database = Database(empty_url)
    upgrade(database)

    def write(session: Session) -> list[str]:
        session.execute(text("UPDATE tenants SET name = 'other'"))
        return database.read(lambda reader: list(reader.scalars(text("SELECT name FROM tenants"))))

    assert database.transact(write) == ["default"]
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


def test_data_of_the_first_schema_is_kept_up_down_and_up_again(empty_url: str) -> None:
    database = Database(empty_url)
    with database.engine.begin() as connection:
        connection.execute(text("SELECT 1"))
        _to(connection, "0001")
        for statement in FIRST_DATA:
            connection.execute(text(statement))
    found = []
    for _ in range(2):
        upgrade(database)
        found.append(database.transact(_registry))
        assert verify(database).reason is None
        with database.engine.begin() as connection:
            _to(connection, "0001")
            states = connection.execute(text("SELECT state FROM revisions ORDER BY id")).scalars().all()
            assert states == ["retired", "active", "stored"]
    assert found[0] == found[1] == ({"a": 2, "b": None}, ["retired", "ready", "ready"], 2)
    upgrade(database)
    database.transact(lambda session: session.add(Adapter(name="new", tenant_id=1)))  # ids go on after the old ones
    database.close()


FIRST_DATA = (
    "INSERT INTO adapters (id, name, description, created) VALUES (1, 'a', 'first', 5), (2, 'b', '', 6)",
    *(
        "INSERT INTO revisions (id, adapter_id, number, digest, size, rank, target_modules, notes, config, state,"
        f" created) VALUES ({at}, {owner}, {number}, 'd{at}', 1, 4, '[\"q_proj\"]', '[]', '{{}}', '{state}', 7)"
        for at, owner, number, state in ((1, 1, 1, "retired"), (2, 1, 2, "active"), (3, 2, 1, "stored"))
    ),
    "INSERT INTO audit (id, at, actor, action, adapter, revision, digest)"
    " VALUES (1, 5, 'admin', 'upload', 'a', 1, 'd1'), (2, 6, 'é', 'delete', 'a', NULL, NULL)",
)


def _registry(session: Session) -> object:
    """What each name resolves to, the states, and the audit's length."""
    adapters = session.scalars(select(Adapter).order_by(Adapter.id)).all()
    resolved = {adapter.name: adapter.active and adapter.active.number for adapter in adapters}
    states = [str(revision.state) for adapter in adapters for revision in adapter.revisions]
    return resolved, states, len(session.scalars(select(AuditLine)).all())


def _to(connection: Connection, revision: str) -> None:
    config = _config()
    config.attributes["connection"] = connection
    (command.downgrade if inspect(connection).has_table("tenants") else command.upgrade)(config, revision)
