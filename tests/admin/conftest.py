"""A real PostgreSQL for the session, databases on it and on SQLite, a tiny base and adapters that fit it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.adapters import load_base, make_adapter
from builders.migrated import Migrated
from builders.models import make_model
from builders.postgres import Postgres, running_postgres
from builders.registry import CONTEXT, Place, SharedEngine


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests."""
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return sqlite_in(tmp_path)
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def database_url(empty_url: str, request: pytest.FixtureRequest) -> str:
    """A database of each kind that has its tables, and nothing in them."""
    migrated: Migrated = request.getfixturevalue(f"migrated_{empty_url.partition(':')[0]}")
    migrated.repeat(empty_url)
    return empty_url


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Migrated:
    """What migrating took there."""
    return Migrated(sqlite_in(tmp_path_factory.mktemp("migrated")))


@pytest.fixture(scope="session")
def migrated_postgresql(postgres: Postgres) -> Migrated:
    """What migrating took there."""
    return Migrated(postgres.new_database())


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base."""
    return make_model(tmp_path_factory.mktemp("base"), num_hidden_layers=2, max_position_embeddings=CONTEXT)


@pytest.fixture(scope="session")
def folders(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four adapters, each with bytes of its own."""
    home, model = tmp_path_factory.mktemp("adapters"), load_base(base)
    return [make_adapter(home / str(seed), model, r=4 + seed, seed=seed) for seed in range(4)]


@pytest.fixture(scope="session")
def engine(base: Path) -> Iterator[SharedEngine]:
    """A real engine on the base."""
    shared = SharedEngine(base)
    yield shared
    asyncio.run(shared.client.close())


@pytest.fixture
def place(engine: SharedEngine, tmp_path: Path, database_url: str) -> Place:
    """A place on each kind of database."""
    return Place(engine, tmp_path, database_url)


@pytest.fixture
def sqlite_place(engine: SharedEngine, tmp_path: Path, migrated_sqlite: Migrated) -> Place:
    """A place on SQLite, for what has nothing to do with databases."""
    migrated_sqlite.repeat(sqlite_in(tmp_path))
    return Place(engine, tmp_path, sqlite_in(tmp_path))


def sqlite_in(folder: Path) -> str:
    """The URL of the file that a server with that state folder has by default."""
    return f"sqlite:///{folder}/registry.sqlite3"
