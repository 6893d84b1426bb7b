"""What a worker answers when the process that has the engine is full, late, dead or gone."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aril.admin_api.catalog import AdapterCatalog
from aril.admin_api.residency import Residency
from aril.core.errors import EngineDead
from aril.engine.aio import AsyncEngine
from aril.server.app import create_app
from aril.server.flights import Bounds, Flights
from aril.server.manners import Manners
from aril.server.workers.link import Link
from builders.engines import make_engine
from builders.models import make_model
from builders.serving import handed_on

LONG: dict[str, Any] = {"model": "tiny", "prompt": [[5]] * 64, "max_tokens": 400, "ignore_eos": True}
SHORT: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(folder: Path) -> Iterator[AsyncEngine]:
    made = AsyncEngine(make_engine(folder, served_model_name="tiny"))
    yield made
    asyncio.run(made.close())


@contextmanager
def asked(engine: AsyncEngine, bounds: Bounds | None = None) -> Iterator[httpx.Client]:
    """A client of a worker that `engine` stands behind."""
    app = create_app(engine, AdapterCatalog("tiny", Residency(engine)), manners=Manners(flights=Flights(bounds)))
    with handed_on(app, engine) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield http


def test_a_dead_engine_is_a_503_whoever_is_asked(engine: AsyncEngine) -> None:
    with asked(engine) as http:
        assert http.post("/v1/completions", json=SHORT).status_code == 200
        asyncio.run(engine.close())
        for answer in (http.post("/v1/completions", json=SHORT), http.get("/health")):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")


def test_an_answer_that_takes_too_long_ends_with_an_error_event(engine: AsyncEngine) -> None:
    with asked(engine, Bounds(seconds=0.3)) as http:
        lines = http.post("/v1/completions", json={**LONG, "stream": True}).text.split("\n\n")
        assert json.loads(lines[-3].removeprefix("data: "))["error"]["code"] == "timeout"


def test_the_queue_is_one_for_all(engine: AsyncEngine) -> None:
    with asked(engine, Bounds(choices=1)) as http:
        with http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as stream:
            lines = stream.iter_lines()  # held: the stream ends with it
            next(lines)
            full = http.post("/v1/completions", json=SHORT)
        assert (full.status_code, full.json()["error"]["code"], full.headers["retry-after"]) == (503, "queue_full", "1")


async def _left_alone() -> None:
    ours, theirs = [await asyncio.open_connection(sock=each) for each in socket.socketpair()]
    link = Link(*ours, Flights())
    listening = asyncio.create_task(link.listen())
    question = asyncio.create_task(link.verify(None, ""))
    await theirs[0].read(1)  # it has been asked
    theirs[1].close()
    await listening
    for waits in (question, link.verify(None, "")):
        with pytest.raises(EngineDead):
            await waits
    ours[1].close()


def test_who_waits_for_a_process_that_is_gone_is_told() -> None:
    asyncio.run(_left_alone())
