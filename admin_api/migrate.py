"""Brings a database to the newest schema, at start and by `aril db upgrade`; processes take turns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import OperationalError

from ..core.errors import Unavailable, Unsupported
from ..core.log import event, get_logger
from .db import Database

if TYPE_CHECKING:
    from alembic.config import Config

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
            if _current(connection) != (head := newest()):
                _upgrade(connection)
    except OperationalError as error:
        raise Unavailable(f"the database does not answer: {error.orig}", code="database_unavailable") from error
    log.info(event("database_ready", url=database.url.render_as_string(hide_password=True), schema=head))
    return head


def newest() -> str:
    """The last revision: files are named by theirs, in order. (Alembic knows too, but takes long to import.)"""
    return max(path.stem for path in (SCRIPTS / "versions").glob("[0-9]*.py")).partition("_")[0]


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return found


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.util import CommandError

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
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    return config
