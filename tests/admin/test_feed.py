"""The feed: what another server has committed arrives here, with and without PostgreSQL's notifications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aril.admin_api import audit
from aril.admin_api.channel import APPLICATION
from aril.admin_api.db import Database
from aril.admin_api.feed import Change, Feed
from aril.admin_api.migrate import upgrade
from aril.admin_api.tables import AuditLine
from aril.core.callers import LOCAL
from aril.core.errors import Unavailable
from builders.postgres import Postgres
from builders.registry import alive, until
from sqlalchemy import delete

QUICK, NEVER = 0.05, 3600.0  # seconds between looks


@dataclass
class Ear:
    """Takes down what it is told; refuses `num_refused` times."""

    heard: list[Change | None] = field(default_factory=list)
    num_refused: int = 0

    async def changed(self, changes: Sequence[Change] | None) -> None:
        """As a listener."""
        if self.num_refused:
            self.num_refused -= 1
            raise Unavailable("not now")
        self.heard.extend([None] if changes is None else changes)


def note(database: Database, subject: str, kind: str = "adapter") -> None:
    """Another server's change."""
    database.transact(lambda session: audit.note(session, LOCAL, "upload", kind, subject))


def told(subject: str, kind: str = "adapter") -> Change:
    """What an ear hears of it."""
    return Change(kind, "default", subject)


@pytest.fixture
def database(database_url: str) -> Database:
    """An up-to-date database of each kind."""
    database = Database(database_url)
    upgrade(database)
    return database


@pytest.fixture
def postgresql(postgres: Postgres) -> Database:
    """An up-to-date database on PostgreSQL."""
    database = Database(postgres.new_database())
    upgrade(database)
    return database


@asynccontextmanager
async def following(database: Database, ear: Ear, look_seconds: float) -> AsyncIterator[Feed]:
    """A feed at work."""
    feed = Feed(database, [ear], look_seconds=look_seconds)
    await feed.begin()
    feed.start()
    try:
        yield feed
    finally:
        feed.stop()
        await asyncio.to_thread(database.close)


def cut(postgres: Postgres) -> int:
    """End every listening connection; returns how many there were."""
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    with postgres.connect() as connection:
        return len(connection.execute(ended, [APPLICATION]).fetchall())


@alive
async def test_looking_finds_every_change_once(database: Database) -> None:
    ear = Ear()
    note(database, "before")
    async with following(database, ear, QUICK):
        for subject in ("a", "b", "c"):
            await asyncio.to_thread(note, database, subject)
            await until(lambda subject=subject: told(subject) in ear.heard)
    assert ear.heard == [told("a"), told("b"), told("c")]


@alive
async def test_a_notification_is_heard_long_before_the_next_look(postgresql: Database, postgres: Postgres) -> None:
    ear = Ear()
    async with following(postgresql, ear, NEVER):
        await until_listening(postgres)
        await asyncio.to_thread(note, postgresql, "a")
        await until(lambda: ear.heard)
    assert ear.heard == [told("a")]


@alive
async def test_a_channel_that_was_cut_is_opened_again_and_nothing_is_missed(
    postgresql: Database, postgres: Postgres
) -> None:
    ear = Ear()
    async with following(postgresql, ear, NEVER):
        await until_listening(postgres)
        assert await asyncio.to_thread(cut, postgres) == 1
        await asyncio.to_thread(note, postgresql, "meanwhile")
        await until(lambda: ear.heard)
        await until_listening(postgres)
        await asyncio.to_thread(note, postgresql, "after")
        await until(lambda: len(ear.heard) == 2)
    assert ear.heard == [told("meanwhile"), told("after")]


@alive
async def test_what_a_listener_could_not_take_in_is_told_again(database: Database) -> None:
    ear = Ear(num_refused=2)
    async with following(database, ear, QUICK):
        await asyncio.to_thread(note, database, "key_1", "key")
        await until(lambda: ear.heard)
    assert ear.heard == [told("key_1", "key")]


@alive
async def test_a_listener_that_is_in_trouble_keeps_no_news_from_the_others(database: Database) -> None:
    deaf, ear = Ear(num_refused=10**6), Ear()
    feed = Feed(database, [deaf, ear])
    await feed.begin()
    await asyncio.to_thread(note, database, "key_1", "key")
    with pytest.raises(Unavailable):
        await feed.once()
    assert (deaf.heard, ear.heard) == ([], [told("key_1", "key")])
    await asyncio.to_thread(database.close)


@alive
async def test_an_audit_that_got_shorter_has_everything_read_again(database: Database) -> None:
    ear = Ear()
    for subject in ("a", "b", "c"):
        note(database, subject)
    async with following(database, ear, QUICK):
        await database.run(lambda session: session.execute(delete(AuditLine).where(AuditLine.subject != "a")))
        await until(lambda: ear.heard)
        ear.heard.clear()
        await asyncio.to_thread(note, database, "d")
        await until(lambda: ear.heard)
    assert ear.heard == [told("d")]


@alive
async def test_a_flood_of_changes_is_one_order_to_read_everything(database: Database) -> None:
    ear = Ear()
    feed = Feed(database, [ear])
    await feed.begin()

    def flood(session) -> None:  # type: ignore[no-untyped-def]
        for number in range(1002):
            audit.note(session, LOCAL, "upload", "adapter", f"a{number}")

    await database.run(flood)
    assert (await feed.once(), ear.heard) == (1001, [None])
    await asyncio.to_thread(database.close)


@pytest.mark.parametrize(
    ("kind", "subject", "adapter"),
    [("adapter", "org/a", "org/a"), ("alias", "org/a@prod", "org/a"), ("key", "key_1", None), ("tenant", "t", None)],
)
def test_a_change_names_the_adapter_that_it_concerns(kind: str, subject: str, adapter: str | None) -> None:
    assert Change(kind, "default", subject).adapter == adapter


async def until_listening(postgres: Postgres) -> None:
    """Until a server hears what PostgreSQL says."""
    asked = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'LISTEN%%' AND state = 'idle'"
    )
    with postgres.connect() as connection:
        async with asyncio.timeout(20):
            while connection.execute(asked, [APPLICATION]).fetchone() != (1,):
                await asyncio.sleep(0.005)
