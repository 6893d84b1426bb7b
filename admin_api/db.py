"""The database: SQLite in a file or PostgreSQL, and one unit of work. Knows no table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from ..core.errors import Conflict, InvalidRequest, Unavailable

T = TypeVar("T")
POSSIBLE = "sqlite:////absolute/file and postgresql://user:password@host/name"
SQLITE_PRAGMAS = (
    "journal_mode=WAL",  # readers do not wait for the writer
    "synchronous=FULL",  # what was acknowledged survives a power cut
    "foreign_keys=ON",
)
SQLITE_WAIT_SECONDS = 30.0


class Database:
    """One database. Work is a plain function of a session, run as one transaction in a worker thread."""

    def __init__(self, url: str) -> None:
        self.url = _checked(url)
        self.engine = _sqlite(self.url) if self.is_sqlite else _postgresql(self.url)
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)

    @property
    def is_sqlite(self) -> bool:
        """Whether the whole database is one file here."""
        return self.url.get_backend_name() == "sqlite"

    async def run(self, work: Callable[[Session], T]) -> T:
        """`transact` without blocking the event loop."""
        return await asyncio.to_thread(self.transact, work)

    def transact(self, work: Callable[[Session], T]) -> T:
        """Do `work` in one transaction; durable on return. Raises Unavailable when the database is not there, and
        Conflict when another process changed the same rows."""
        try:
            with self._sessions.begin() as session:
                return work(session)
        except IntegrityError as error:
            raise Conflict("another process changed the same adapter; look and try again") from error
        except (OperationalError, InterfaceError) as error:
            raise Unavailable(f"the database does not answer: {error.orig}", code="database_unavailable") from error

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()


def _checked(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise InvalidRequest(f"--database-url is no URL; possible: {POSSIBLE}", param="database_url") from error
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise InvalidRequest(f"--database-url: no {backend!r} here; possible: {POSSIBLE}", param="database_url")
    if url.database in (None, "", ":memory:"):
        raise InvalidRequest("--database-url: SQLite needs a file; a registry must outlive the process")
    return url


def _postgresql(url: URL) -> Engine:
    return create_engine(url, pool_pre_ping=True)


def _sqlite(url: URL) -> Engine:
    assert url.database is not None
    Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": SQLITE_WAIT_SECONDS})
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: DBAPIConnection, _: object) -> None:
    # The driver would open transactions by itself, late and never around DDL; None leaves that to _begin.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in SQLITE_PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # Taking the write lock at once cannot fail halfway, as a read that becomes a write can.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
