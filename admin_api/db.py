"""The database: SQLite in a file or PostgreSQL, and one unit of work. Knows no table."""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from ..core.errors import Conflict, InvalidRequest, NotFound, Unavailable

T = TypeVar("T")
POSSIBLE = "sqlite:////absolute/file and postgresql://user:password@host/name"
SQLITE_PRAGMAS = (
    "journal_mode=WAL",  # readers do not wait for the writer
    "synchronous=FULL",  # what was acknowledged survives a power cut
    "foreign_keys=ON",
)
SQLITE_WAIT_SECONDS = 30.0
RACES = ("40001", "40P01")  # PostgreSQL: could not serialize, deadlock
MAX_TRIES = 5
WAIT_SECONDS = 0.02
READS = "aril_reads"  # the option of connections that only read
THREADS = 8  # of its own: uploads that are written and hashed must not hold up a revocation


class Database:
    """One database. Work is a plain function of a session, run as one transaction in a worker thread."""

    def __init__(self, url: str) -> None:
        self.url = _checked(url)
        self.engine = _sqlite(self.url) if self.is_sqlite else _postgresql(self.url)
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)
        self._readers = sessionmaker(self.engine.execution_options(**{READS: True}), expire_on_commit=False)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="aril-database")

    @classmethod
    def existing(cls, url: str) -> Database:
        """A database to look into; raises NotFound rather than make a file."""
        place = _checked(url)
        if place.get_backend_name() == "sqlite" and not Path(place.database or "").is_file():
            raise NotFound(f"there is no database {place.database}", param="database_url")
        return cls(url)

    @property
    def is_sqlite(self) -> bool:
        """Whether the whole database is one file here."""
        return self.url.get_backend_name() == "sqlite"

    async def run(self, work: Callable[[Session], T]) -> T:
        """`transact` without blocking the event loop."""
        return await self._elsewhere(self.transact, work)

    async def look(self, work: Callable[[Session], T]) -> T:
        """`read` without blocking the event loop."""
        return await self._elsewhere(self.read, work)

    def read(self, work: Callable[[Session], T]) -> T:
        """Do `work`, which changes nothing, on the database as it is at one moment. It waits for no writer, as
        `transact` does on SQLite. Raises Unavailable when the database is not there."""
        try:
            with self._readers.begin() as session:
                return work(session)
        except DBAPIError as error:
            raise _explained(error) from error

    def transact(self, work: Callable[[Session], T]) -> T:
        """Do `work` in one transaction; durable on return. When another process was quicker with the same rows, it is
        done anew on what that one left, so it may run several times. Raises Unavailable when the database is not there.
        """
        for tries_left in reversed(range(MAX_TRIES)):
            try:
                with self._sessions.begin() as session:
                    return work(session)
            except DBAPIError as error:
                if not tries_left or not _has_lost_a_race(error):
                    raise _explained(error) from error
                time.sleep(random.random() * WAIT_SECONDS)
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def alone(self, lock: int) -> Iterator[bool]:
        """Whether no server on this database is in `among` the same lock now; while it is so, none comes in."""
        with self._locked("pg_try_advisory_xact_lock", lock) as found:
            yield found is not False

    @contextmanager
    def among(self, lock: int) -> Iterator[None]:
        """Keep others from being `alone` with a lock, which is a number. SQLite has one server, which has its own
        locks."""
        with self._locked("pg_advisory_xact_lock_shared", lock):
            yield

    @contextmanager
    def _locked(self, function: str, lock: int) -> Iterator[object]:
        if self.is_sqlite:
            yield None
            return
        try:
            connection = self.engine.connect()
        except DBAPIError as error:
            raise _explained(error) from error
        with connection, connection.begin():  # what the server's end ends too, wherever it was
            yield connection.scalar(text(f"SELECT {function}(:lock)"), {"lock": lock})

    async def _elsewhere(self, do: Callable[[Callable[[Session], T]], T], work: Callable[[Session], T]) -> T:
        run = partial(contextvars.copy_context().run, do, work)
        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def close(self) -> None:
        """Give all threads and connections back."""
        self._threads.shutdown(wait=False)
        self.engine.dispose()


def _has_lost_a_race(error: DBAPIError) -> bool:
    return isinstance(error, IntegrityError) or getattr(error.orig, "sqlstate", None) in RACES


def _explained(error: DBAPIError) -> Exception:
    if isinstance(error, IntegrityError):
        return Conflict("another process changed the same thing; look and try again")
    if isinstance(error, OperationalError | InterfaceError):
        return Unavailable(f"the database does not answer: {error.orig}", code="database_unavailable")
    if isinstance(error, DataError) and "NUL" in str(error.orig):
        return InvalidRequest("a text in this request holds the character NUL, which no text here may")
    return error


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
    reads = connection.get_execution_options().get(READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
