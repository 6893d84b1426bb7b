"""The application asked from within: as whoever is named, in the background, and by nobody from outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest
from aril.admin_api.catalog import AdapterCatalog
from aril.admin_api.residency import Residency
from aril.core.callers import Caller, Scope
from aril.engine.aio import AsyncEngine
from aril.server.app import create_app
from aril.server.auth import OneKey
from aril.server.inside import KEY, Inside
from builders.engines import make_engine
from builders.models import make_model
from builders.registry import alive, until
from fastapi import FastAPI

PATH = "/v1/completions"
SOMEONE = Caller(name="someone")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncEngine]:
    """One for all tests."""
    model = make_model(tmp_path_factory.mktemp("inside"), max_position_embeddings=1 << 14)
    engine = AsyncEngine(make_engine(model, served_model_name="tiny", kv_cache_memory="16MiB"))
    yield engine
    asyncio.run(engine.close())


@pytest.fixture
def app(engine: AsyncEngine) -> FastAPI:
    """One key opens it, and nobody has that."""
    return create_app(engine, AdapterCatalog("tiny", Residency(engine)), keys=OneKey("secret", "the key"))


def body(**fields: object) -> bytes:
    return json.dumps({"model": "tiny", "prompt": [5, 6], "max_tokens": 2, "ignore_eos": True, **fields}).encode()


@alive
async def test_whoever_is_named_needs_no_key(app: FastAPI) -> None:
    answer = await Inside(app).answer(SOMEONE, PATH, body())
    assert answer.status == 200
    assert answer.request_id
    assert json.loads(answer.body)["usage"]["completion_tokens"] == 2


@alive
async def test_whoever_is_named_may_no_more_than_they_may(app: FastAPI) -> None:
    answer = await Inside(app).answer(Caller(name="reader", scopes=frozenset({Scope.READ})), PATH, body())
    assert (answer.status, answer.error["code"]) == (403, "permission_denied")


@alive
async def test_nobody_outside_is_taken_for_one_who_asks_from_within(app: FastAPI) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://outside") as http:
        for headers in ({}, {KEY: "someone"}, {"Authorization": "Bearer wrong", KEY.replace(".", "-"): "someone"}):
            answer = await http.post(f"{PATH}?{KEY}=someone", content=body(), headers=headers)
            assert answer.status_code == 401


@alive
async def test_it_stands_behind_others_whatever_it_says_of_itself(app: FastAPI, engine: AsyncEngine) -> None:
    long = asyncio.ensure_future(Inside(app).answer(SOMEONE, PATH, body(n=16, max_tokens=9000, priority=-5)))
    await until(lambda: engine.status().running == 16)  # all rows
    beside = create_app(engine, AdapterCatalog("tiny", Residency(engine)))  # that anyone may ask
    async with httpx.AsyncClient(transport=httpx.ASGITransport(beside), base_url="http://outside") as http:
        assert (await http.post(PATH, content=body())).status_code == 200
    assert not long.done()
    long.cancel()
    await until(lambda: engine.status().running + engine.status().waiting == 0)


def test_batches_are_made_for_the_routes_that_there_are(app: FastAPI) -> None:
    assert set(Inside(app).paths) >= {"/v1/chat/completions", "/v1/completions", "/v1/embeddings"}
    assert Inside(FastAPI()).paths == []
