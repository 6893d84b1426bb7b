"""A real server on a tiny model with three adapters, and the clients that ask it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from aril.admin_api.catalog import AdapterCatalog
from aril.admin_api.db import Database
from aril.admin_api.listing import Listed
from aril.admin_api.migrate import upgrade
from aril.admin_api.residency import Residency
from aril.admin_api.responses import Responses
from aril.engine.aio import AsyncEngine
from aril.lora.adapter import AdapterRef
from aril.server.app import create_app
from builders.adapters import load_base, make_adapter
from builders.engines import make_engine
from builders.models import make_model
from builders.serving import Served, handed_on, listening
from openai import OpenAI

THROUGH_A_WORKER = bool(os.environ.get("ARIL_TEST_THROUGH_A_WORKER"))  # all tests here hold for both ways
ADAPTERS = ("red", "green", "org/blue")
CONTEXT = 256


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server of all tests here; nobody changes it for good."""
    root = tmp_path_factory.mktemp("served")
    folder = make_model(root / "model")
    base = load_base(folder)
    folders: dict[AdapterRef, Path] = {
        AdapterRef(name, 1, f"{at:064x}"): make_adapter(root / str(at), base, seed=at, r=4 * (at + 1))
        for at, name in enumerate(ADAPTERS)
    }
    flags = {"served_model_name": "tiny", "max_model_len": CONTEXT, "kv_cache_memory": "16MiB"}
    engine = AsyncEngine(make_engine(folder, folders, **flags))
    catalog = AdapterCatalog("tiny", Residency(engine))
    catalog.put_all(Listed.alone(ref) for ref in folders)
    database = Database(f"sqlite:///{root}/registry.sqlite3")
    upgrade(database)
    kept = Responses(database, days=30, max_bytes=16 << 20)
    app = create_app(engine, catalog, kept=kept)
    with handed_on(app, engine) if THROUGH_A_WORKER else listening(app) as url:
        yield Served(url, engine, catalog)
    database.close()
    asyncio.run(engine.close())


@pytest.fixture(scope="session")
def client(served: Served) -> OpenAI:
    """OpenAI's own client."""
    return OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="session")
def http(served: Served) -> Iterator[httpx.Client]:
    """For bytes that OpenAI's client would not send."""
    with httpx.Client(base_url=served.url, timeout=60) as session:
        yield session
