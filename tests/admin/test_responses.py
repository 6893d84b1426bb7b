"""Responses are kept for their tenant alone, until they are old or too many; what a crash cut has failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aril.admin_api.db import Database
from aril.admin_api.migrate import upgrade
from aril.admin_api.responses import DAY, LEASE, Responses
from aril.admin_api.settings import AdminSettings
from aril.admin_api.tables import StoredResponse, Tenant, now
from aril.core.callers import Caller
from aril.core.errors import InvalidRequest, TooLarge
from builders.registry import Place, alive
from sqlalchemy import update

OURS, THEIRS = Caller(name="a"), Caller(name="b", tenant="other", tenant_id=2)
ITEMS = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "\x00 é 🌱"}]}]


def response(id: str, status: str = "completed", **fields: Any) -> dict[str, Any]:
    """A response as the face would keep it."""
    return {"id": id, "status": status, "error": None, **fields}


@asynccontextmanager
async def keeping(url: str, *, max_bytes: int = 1 << 20) -> AsyncIterator[Responses]:
    """The responses of a database with two tenants."""
    database = Database(url)
    await asyncio.to_thread(upgrade, database)
    await database.run(lambda session: session.add(Tenant(id=2, name="other")))
    yield Responses(database, days=30, max_bytes=max_bytes)
    database.close()


async def change(kept: Responses, **values: Any) -> None:
    """Change all rows, as time would."""
    await kept._database.run(lambda session: session.execute(update(StoredResponse).values(**values)) and None)


@alive
async def test_a_response_comes_back_as_it_was(database_url: str) -> None:
    async with keeping(database_url) as kept:
        await kept.keep(OURS, response("resp_1", output=["\x00"]), ITEMS, ended=True)
        assert await kept.find(OURS, "resp_1") == response("resp_1", output=["\x00"])
        assert await kept.input_of(OURS, "resp_1") == ITEMS


@alive
async def test_another_tenant_finds_and_deletes_nothing(database_url: str) -> None:
    async with keeping(database_url) as kept:
        await kept.keep(OURS, response("resp_1"), ITEMS, ended=True)
        assert await kept.find(THEIRS, "resp_1") is None
        assert await kept.input_of(THEIRS, "resp_1") is None
        assert await kept.finish(THEIRS, "resp_1", {"status": "cancelled"}) is None
        assert not await kept.forget(THEIRS, "resp_1")
        assert await kept.forget(OURS, "resp_1")
        assert await kept.find(OURS, "resp_1") is None


@alive
async def test_what_has_ended_stays_as_it_is(database_url: str) -> None:
    async with keeping(database_url) as kept:
        await kept.keep(OURS, response("resp_1", "in_progress"), ITEMS, ended=False)
        assert await kept.finish(OURS, "resp_1", {"status": "cancelled"}) == response("resp_1", "cancelled")
        assert await kept.finish(OURS, "resp_1", {"status": "completed"}) == response("resp_1", "cancelled")


@alive
async def test_whoever_makes_a_response_hears_that_it_is_not_wanted_any_more(database_url: str) -> None:
    async with keeping(database_url) as kept:
        for id in ("resp_1", "resp_2", "resp_3"):
            await kept.keep(OURS, response(id, "in_progress"), ITEMS, ended=False)
        await kept.finish(OURS, "resp_1", {"status": "cancelled"})
        await kept.forget(OURS, "resp_2")
        assert await kept.hold(["resp_1", "resp_2", "resp_3"]) == {"resp_3"}


@pytest.mark.parametrize("swept", [True, False])
@alive
async def test_a_response_that_nobody_makes_any_more_has_failed(database_url: str, swept: bool) -> None:
    async with keeping(database_url) as kept:
        await kept.keep(OURS, response("resp_1", "in_progress"), ITEMS, ended=False)
        await kept.sweep()
        found = await kept.find(OURS, "resp_1")
        assert found is not None
        assert found["status"] == "in_progress"
        await change(kept, held_until=now() - 1)
        if swept:
            await kept.sweep()
        found = await kept.find(OURS, "resp_1")
        assert found is not None
        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
        assert await kept.hold(["resp_1"]) == set()


@alive
async def test_an_answer_that_is_there_is_kept_however_late_its_server_is(database_url: str) -> None:
    async with keeping(database_url) as kept:
        other = Responses(kept._database, days=30, max_bytes=1 << 20)
        for id in ("resp_1", "resp_2"):
            await kept.keep(OURS, response(id, "in_progress"), ITEMS, ended=False)
        await change(kept, held_until=now() - 1)
        assert await kept.finish(OURS, "resp_1", {"status": "completed"}) == response("resp_1")
        found = await other.finish(OURS, "resp_2", {"status": "cancelled"})
        assert found is not None
        assert found["status"] == "failed"


@alive
async def test_a_server_that_says_that_it_lives_keeps_its_responses(database_url: str) -> None:
    async with keeping(database_url) as kept:
        await kept.keep(OURS, response("resp_1", "in_progress"), ITEMS, ended=False)
        await change(kept, held_until=now() + 1)
        assert await kept.hold(["resp_1"]) == {"resp_1"}
        held = await kept._database.run(lambda session: session.get_one(StoredResponse, "resp_1").held_until)
        assert held is not None
        assert held >= now() + LEASE - 2


@alive
async def test_the_oldest_go_when_a_tenant_has_too_many(database_url: str) -> None:
    async with keeping(database_url, max_bytes=20_000) as kept:
        await kept.keep(THEIRS, response("resp_theirs"), ITEMS, ended=True)
        for at in range(30):
            await kept.keep(OURS, response(f"resp_{at:02}", text="x" * 1000), [], ended=True)
            await change(kept, created=StoredResponse.created - 1)
        there = [at for at in range(30) if await kept.find(OURS, f"resp_{at:02}")]
        assert there == list(range(there[0], 30))
        assert 10 <= len(there) <= 13
        assert await kept.find(THEIRS, "resp_theirs")


@alive
async def test_one_that_is_larger_than_all_that_is_kept_is_refused(database_url: str) -> None:
    async with keeping(database_url, max_bytes=20_000) as kept:
        with pytest.raises(TooLarge, match="store: false"):
            await kept.keep(OURS, response("resp_1", text="x" * 20_000), [], ended=True)


@alive
async def test_what_is_too_old_is_swept(database_url: str) -> None:
    async with keeping(database_url) as kept:
        await kept.keep(OURS, response("resp_1"), ITEMS, ended=True)
        await change(kept, created=now() - 30 * DAY - 1)
        await kept.keep(OURS, response("resp_2"), ITEMS, ended=True)
        await kept.sweep()
        assert await kept.find(OURS, "resp_1") is None
        assert await kept.find(OURS, "resp_2")


@alive
async def test_a_tenants_responses_go_with_it(place: Place) -> None:
    async with place.running() as registry:
        await registry.http.post("/admin/v1/tenants", json={"name": "gone"})
        gone = registry.admin.keyring.acting(await registry.admin.keyring.verify(ADMIN, ""), "gone")
        assert registry.admin.responses is not None
        await registry.admin.responses.keep(gone, response("resp_1"), ITEMS, ended=True)
        assert (await registry.http.delete("/admin/v1/tenants/gone")).status_code == 200
        assert await registry.admin.responses.find(gone, "resp_1") is None


ADMIN = "Bearer the-admin-key"


@alive
async def test_a_start_lets_fail_what_the_last_life_left_undone(sqlite_place: Place) -> None:
    async with sqlite_place.running(crash=True) as registry:
        assert registry.admin.responses is not None
        await registry.admin.responses.keep(OURS, response("resp_1", "queued"), ITEMS, ended=False)
    async with sqlite_place.running() as registry:
        assert registry.admin.responses is not None
        found = await registry.admin.responses.find(OURS, "resp_1")
        assert found is not None
        assert found["status"] == "failed"


@pytest.mark.parametrize("wrong", [{"response_days": -1}, {"response_days": 100_000}, {"response_bytes": 1}])
def test_bounds_that_cannot_be_are_refused_by_their_flag(sqlite_place: Place, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="--response-"):
        AdminSettings(state_dir=sqlite_place.state, **wrong)
