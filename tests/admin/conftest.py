"""A real PostgreSQL for the session, databases on it and on SQLite, a tiny base and adapters that fit it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.adapters import load_base, make_adapter
from builders.models import make_model
from builders.postgres import Postgres, running_postgres
from builders.registry import CONTEXT, Place, SharedEngine


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests."""
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/registry.sqlite3"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


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
def sqlite_place(engine: SharedEngine, tmp_path: Path) -> Place:
    """A place on SQLite, for what has nothing to do with databases."""
    return Place(engine, tmp_path, f"sqlite:///{tmp_path}/registry.sqlite3")
