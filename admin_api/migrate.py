"""Brings a database to the newest schema, at start and by `aril db upgrade`; processes take turns."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from ..core.errors import Unavailable, Unsupported
from ..core.log import event, get_logger
from .db import Database

log = get_logger(__name__)
SCRIPTS = Path(__file__).parents[1] / "migrations"
LOCK_ID = 0x6172696C  # "aril"; an advisory lock is a number


def upgrade(database: Database) -> str:
    """Run what is missing, all of it in one transaction; returns the schema's revision.

    Raises Unsupported for a database that a newer Aril has written, Unavailable when there is none to talk to.
    """
    try:
        with database.engine.begin() as connection:
            _lock(connection)
            _upgrade(connection)
    except OperationalError as error:
        raise Unavailable(f"the database does not answer: {error.orig}", code="database_unavailable") from error
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    log.info(event("database_ready", url=database.url.render_as_string(hide_password=True), schema=head))
    return head


def _upgrade(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise Unsupported(f"the database was written by a newer Aril; upgrade Aril ({error})") from error


def _lock(connection: Connection) -> None:
    # SQLite has taken its write lock with BEGIN IMMEDIATE; both locks end with the transaction.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": LOCK_ID})


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    return config
