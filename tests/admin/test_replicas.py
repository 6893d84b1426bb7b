"""Two servers on one PostgreSQL and one store: what one does the other knows soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aril.admin_api.channel import APPLICATION
from builders.postgres import Postgres
from builders.registry import ADAPTERS, Place, Registry, SharedEngine, alive

LIMIT = 10.0  # seconds, on a machine that has other things to do; an idle one takes less than 2
CUT_SECONDS = 3.0


@pytest.fixture(scope="module")
def other_engine(base: Path) -> Iterator[SharedEngine]:
    """The engine of the second server."""
    shared = SharedEngine(base)
    yield shared
    asyncio.run(shared.client.close())


@pytest.fixture
def places(engine: SharedEngine, other_engine: SharedEngine, postgres: Postgres, tmp_path: Path) -> tuple[Place, Place]:
    """Two engines on one database and one store."""
    url = postgres.new_database()
    return Place(engine, tmp_path, url), Place(other_engine, tmp_path, url)


@asynccontextmanager
async def both(places: tuple[Place, Place]) -> AsyncIterator[tuple[Registry, Registry]]:
    """Both servers at work."""
    async with places[0].running() as first, places[1].running() as second:
        yield first, second


async def within_limit(holds: Callable[[], Awaitable[bool]]) -> None:
    """`holds` does so soon."""
    deadline = time.monotonic() + LIMIT
    while not await holds():
        assert time.monotonic() < deadline, "the other server has not heard of it"
        await asyncio.sleep(0.01)


async def answers(registry: Registry, model: str, key: str = "") -> int:
    """The status of one short request."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": model, "prompt": "a", "max_tokens": 2}
    return (await registry.http.post("/v1/completions", json=body, headers=headers)).status_code


async def cut(postgres: Postgres, seconds: float) -> None:
    """End every listening connection as soon as there is one."""
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    until = time.monotonic() + seconds
    with postgres.connect() as connection:
        while time.monotonic() < until:
            connection.execute(ended, [APPLICATION])
            await asyncio.sleep(0.02)


@alive
async def test_what_is_uploaded_to_one_is_answered_by_the_other(
    places: tuple[Place, Place], folders: list[Path]
) -> None:
    async with both(places) as (first, second):
        assert (await first.upload("pirate", folders[0])).is_success
        await within_limit(lambda: served(second, "pirate"))
        assert await second.answer("pirate") == await first.answer("pirate")
        assert await first.models() == await second.models()


@alive
async def test_a_new_revision_and_a_deletion_reach_the_other(places: tuple[Place, Place], folders: list[Path]) -> None:
    async with both(places) as (first, second):
        await first.upload("pirate", folders[0])
        await within_limit(lambda: served(second, "pirate"))
        await second.upload("pirate", folders[1], activate="true")
        await within_limit(lambda: speaks(first, "pirate", 2))
        assert (await second.http.delete(f"{ADAPTERS}/pirate")).is_success
        await within_limit(lambda: is_unknown(first, "pirate"))
        assert await first.models() == await second.models() == ["tiny"]


@alive
async def test_a_key_that_is_revoked_at_one_is_refused_by_the_other(places: tuple[Place, Place]) -> None:
    async with both(places) as (first, second):
        made = (await first.http.post("/admin/v1/keys", json={"name": "k", "scopes": ["infer"]})).json()
        assert await answers(first, "tiny", made["key"]) == 200
        assert (await first.http.post(f"/admin/v1/keys/{made['id']}/revoke")).is_success
        assert await answers(first, "tiny", made["key"]) == 401
        await within_limit(lambda: gives(second, 401, made["key"]))


@alive
async def test_while_the_channel_is_cut_and_after_it_both_agree_in_time(
    places: tuple[Place, Place], folders: list[Path], postgres: Postgres
) -> None:
    async with both(places) as (first, second):
        cutting = asyncio.create_task(cut(postgres, CUT_SECONDS))
        await asyncio.sleep(0.1)
        await first.upload("during", folders[0])
        await within_limit(lambda: served(second, "during"))
        await cutting
        await second.upload("after", folders[1])
        await within_limit(lambda: served(first, "after"))
        assert await first.models() == await second.models() == ["tiny", "after", "during"]


@alive
async def test_a_canary_that_both_find_wanting_is_taken_back_once(
    places: tuple[Place, Place], folders: list[Path]
) -> None:
    alias = f"{ADAPTERS}/pirate/aliases/prod"
    too_slow = {"max_p95_seconds": 1e-6, "min_requests": 3}
    async with both(places) as (first, second):
        for folder in folders[:3]:
            await first.upload("pirate", folder)
        for number in (1, 2):
            assert (await first.http.put(alias, json={"revision": number})).is_success
        assert (await first.http.put(alias, json={"revision": 3, "bounds": too_slow})).is_success
        await within_limit(lambda: speaks(second, "pirate@prod", 3))
        await asyncio.gather(*(answers(server, "pirate@prod") for server in (first, second) for _ in range(4)))
        for server in (first, second):
            await within_limit(lambda server=server: speaks(server, "pirate@prod", 2))
        lines = (await first.http.get("/admin/v1/audit")).json()["data"]
        assert [line["action"] for line in lines].count("rollback") == 1


@alive
async def test_when_one_dies_the_other_goes_on(places: tuple[Place, Place], folders: list[Path]) -> None:
    async with places[1].running() as second:
        async with places[0].running(crash=True) as first:
            await first.upload("pirate", folders[0])
        await within_limit(lambda: served(second, "pirate"))
        await second.upload("parrot", folders[1])
        async with places[0].running() as first:
            assert await first.models() == await second.models() == ["tiny", "parrot", "pirate"]


async def served(registry: Registry, model: str) -> bool:
    """Whether it answers."""
    return await answers(registry, model) == 200


async def is_unknown(registry: Registry, model: str) -> bool:
    """Whether there is no such model."""
    return await answers(registry, model) == 404


async def gives(registry: Registry, status: int, key: str) -> bool:
    """Whether the base answers so to the holder of `key`."""
    return await answers(registry, "tiny", key) == status


async def speaks(registry: Registry, model: str, revision: int) -> bool:
    """Whether requests go to that revision."""
    with suppress(Exception):
        ref = await registry.resolve(model)
        return ref is not None and ref.revision == revision
    return False
