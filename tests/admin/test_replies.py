"""A write under an Idempotency-Key is done once and answered the same: at once, later, and after a crash."""

from __future__ import annotations

import asyncio
from pathlib import Path

from builders.registry import ADAPTERS, Place, alive

PROD = f"{ADAPTERS}/pirate/aliases/prod"
KEY = {"Idempotency-Key": "b4c1-17"}


@alive
async def test_a_repeated_rollback_goes_back_once(place: Place, folders: list[Path]) -> None:
    async with place.running(crash=True) as registry:
        for folder in folders[:3]:
            await registry.upload("pirate", folder)
        for revision in (1, 2, 3):
            await registry.http.put(PROD, json={"revision": revision})
        first = await registry.http.post(f"{PROD}/rollback", headers=KEY)
        again = await registry.http.post(f"{PROD}/rollback", headers=KEY)
    async with place.running() as registry:
        later = await registry.http.post(f"{PROD}/rollback", headers=KEY)
        assert first.json()["revision"] == 2
        assert [(a.status_code, a.json(), a.headers["etag"]) for a in (again, later)] == [
            (200, first.json(), first.headers["etag"])
        ] * 2
        assert (await registry.http.get(PROD)).json()["revision"] == 2


@alive
async def test_the_same_write_many_times_at_once_is_one(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        for folder in folders[:3]:
            await registry.upload("pirate", folder)
        for revision in (1, 2, 3):
            await registry.http.put(PROD, json={"revision": revision})
        answers = await asyncio.gather(*(registry.http.post(f"{PROD}/rollback", headers=KEY) for _ in range(8)))
        assert {answer.text for answer in answers} == {answers[0].text}
        assert (await registry.http.get(PROD)).json()["revision"] == 2


@alive
async def test_a_key_that_came_with_another_request_is_refused(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await registry.upload("pirate", folders[0])
        await registry.http.put(PROD, json={"revision": 1}, headers=KEY)
        for other in (
            await registry.http.put(PROD, json={"revision": 1, "sticky_header": "x"}, headers=KEY),
            await registry.http.delete(PROD, headers=KEY),
        ):
            assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
        odd = await registry.http.put(PROD, json={"revision": 1}, headers={"Idempotency-Key": "x" * 256})
        assert (odd.status_code, odd.json()["error"]["param"]) == (400, "Idempotency-Key")


@alive
async def test_what_was_refused_may_be_tried_again(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        refused = await registry.http.put(PROD, json={"revision": 1}, headers=KEY)
        await registry.upload("pirate", folders[0])
        assert refused.status_code == 404
        assert (await registry.http.put(PROD, json={"revision": 1}, headers=KEY)).status_code == 200


@alive
async def test_an_upload_sent_twice_is_one_however_its_parts_are_divided(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        registry.http.headers.update(KEY)
        first = await registry.upload("pirate", folders[0])
        del registry.http.headers["Idempotency-Key"]
        await registry.upload("pirate", folders[1])
        registry.http.headers.update(KEY)
        again = await registry.upload("pirate", folders[0])
        assert (again.status_code, again.json()) == (202, first.json())
        other = await registry.upload("pirate", folders[2])
        assert other.status_code == 409
        view = (await registry.http.get(f"{ADAPTERS}/pirate")).json()
        assert [revision["number"] for revision in view["revisions"]] == [1, 2]
