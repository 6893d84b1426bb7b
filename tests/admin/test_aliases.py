"""Aliases over HTTP: what names mean, how they move and go back, and who wins when two move them at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from aril.admin_api.listing import Route
from aril.admin_api.tables import AuditLine
from builders.registry import ADAPTERS, BASE, Place, Registry, alive
from sqlalchemy import select

PIRATE = f"{ADAPTERS}/org/pirate"
PROD = f"{PIRATE}/aliases/prod"


async def two_revisions(registry: Registry, folders: list[Path]) -> None:
    """org/pirate@1, which the bare name means, and org/pirate@2."""
    await registry.upload("org/pirate", folders[0])
    await registry.upload("org/pirate", folders[1], activate="false")


async def speaker(registry: Registry, model: str, **fields: Any) -> str:
    """Who answers for `model`, as the answer says itself."""
    headers = fields.pop("headers", {})
    body = {"model": model, "prompt": "Hello", "max_tokens": 1, **fields}
    answer = await registry.http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["system_fingerprint"] == answer.headers["x-aril-adapter"]
    return answer.headers["x-aril-adapter"]


def refused(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


@alive
async def test_every_way_to_name_a_revision_finds_it(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await two_revisions(registry, folders)
        await registry.http.put(PROD, json={"revision": 2})
        digest = (await registry.http.get(f"{PIRATE}/revisions/2")).json()["digest"]
        for name in (
            "org/pirate@2",
            "org/pirate@prod",
            f"org/pirate@sha256:{digest[:8]}",
            f"org/pirate@sha256:{digest}",
        ):
            assert await speaker(registry, name) == "org/pirate@2"
            assert await speaker(registry, f"{BASE}:{name}") == "org/pirate@2"
        assert await speaker(registry, "org/pirate") == "org/pirate@1"
        assert await speaker(registry, BASE) == BASE


@alive
async def test_a_name_that_means_nothing_is_never_the_base(sqlite_place: Place, folders: list[Path]) -> None:
    odd = ["@", "@1", f"{BASE}:", f"{BASE}:{BASE}", f"{BASE}@1"]
    odd += [f"org/pirate@{selector}" for selector in ("", "0", "01", "3", "x", "sha256:0123", "1@1")]
    async with sqlite_place.running() as registry:
        await two_revisions(registry, folders)
        for model in odd:
            answer = await registry.http.post("/v1/completions", json={"model": model, "prompt": "Hello"})
            assert refused(answer) == (404, "model_not_found", "model"), model


@alive
async def test_a_move_holds_for_the_next_request_and_survives_a_crash(place: Place, folders: list[Path]) -> None:
    async with place.running(crash=True) as registry:
        await two_revisions(registry, folders)
        await registry.http.put(PROD, json={"revision": 1})
        assert await speaker(registry, "org/pirate@prod") == "org/pirate@1"
        await registry.http.put(PROD, json={"revision": 2})
        assert await speaker(registry, "org/pirate@prod") == "org/pirate@2"
    async with place.running() as registry:
        assert await speaker(registry, "org/pirate@prod") == "org/pirate@2"


@alive
async def test_a_request_under_way_keeps_its_revision(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await two_revisions(registry, folders)
        await registry.http.put(PROD, json={"revision": 1})
        undisturbed = await registry.answer("org/pirate@prod", num_tokens=100)
        answer = asyncio.create_task(registry.answer("org/pirate@prod", num_tokens=100))
        await asyncio.sleep(0)
        await registry.http.put(PROD, json={"revision": 2})
        assert await answer == undisturbed


@alive
async def test_rollback_goes_back_move_by_move(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await two_revisions(registry, folders)
        for move in ({"revision": 1}, {"weights": {"1": 95, "2": 5}}, {"revision": 2}):
            await registry.http.put(PROD, json=move)
        back = [(await registry.http.post(f"{PROD}/rollback")).json()["weights"] for _ in range(2)]
        assert back == [{"1": 95, "2": 5}, {"1": 100}]
        further = await registry.http.post(f"{PROD}/rollback")
        assert refused(further) == (409, "conflict", "alias")
        assert further.json()["error"]["message"] == "no earlier move of org/pirate@prod is left to take back"


@alive
async def test_what_a_change_leaves_out_stays(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await two_revisions(registry, folders)
        extras = {"sticky_header": "x-user", "shadow": {"revision": 2, "share": 0.5}, "bounds": {"max_error_rate": 0.1}}
        await registry.http.put(PROD, json={"revision": 1, **extras})
        moved = (await registry.http.put(PROD, json={"revision": 2})).json()
        assert {field: moved[field] for field in extras} == extras
        cleared = (await registry.http.put(PROD, json={"shadow": None})).json()
        assert (cleared["shadow"], cleared["revision"]) == (None, 2)


BAD = [
    ({}, 400, "revision"),
    ({"revision": 0}, 400, "revision"),
    ({"revision": "1"}, 400, "revision"),
    ({"revision": 7}, 404, "revision"),
    ({"revision": 1, "weights": {"1": 1}}, 400, "weights"),
    ({"weights": {}}, 400, "weights"),
    ({"weights": {"1": 0}}, 400, "weights"),
    ({"weights": {"one": 1}}, 400, "weights.one"),
    ({"weights": {"1": 50, "9": 50}}, 404, "revision"),
    ({"revision": 1, "sticky_header": "a b"}, 400, "sticky_header"),
    ({"revision": 1, "shadow": {"revision": 9, "share": 0.1}}, 404, "revision"),
    ({"revision": 1, "shadow": {"revision": 1, "share": 2}}, 400, "shadow.share"),
    ({"revision": 1, "bounds": {"max_error_rate": 2}}, 400, "bounds.max_error_rate"),
    ({"revision": 1, "colour": "red"}, 400, "colour"),
]


@alive
async def test_a_bad_alias_is_refused_by_field_and_not_made(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await two_revisions(registry, folders)
        for body, status, field in BAD:
            found = refused(await registry.http.put(PROD, json=body))
            assert (found[0], found[2]) == (status, field), (body, found)
        for name in ("3", "Prod", "a" * 64, "-x", "sha256:00"):
            assert refused(await registry.http.put(f"{PIRATE}/aliases/{name}", json={"revision": 1}))[2] == "alias"
        assert [alias["name"] for alias in (await registry.http.get(f"{PIRATE}/aliases")).json()["data"]] == ["default"]
        assert refused(await registry.http.get(PROD)) == (404, "alias_not_found", "alias")


@alive
async def test_a_named_revision_cannot_be_retired_and_an_unnamed_one_leaves(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await two_revisions(registry, folders)
        await registry.http.put(PROD, json={"revision": 2})
        retire = f"{PIRATE}/revisions/2/retire"
        status, _, _ = refused(await registry.http.post(retire))
        assert status == 409
        await registry.http.delete(PROD)
        assert (await registry.http.post(retire)).json()["state"] == "retired"
        answer = await registry.http.post("/v1/completions", json={"model": "org/pirate@2", "prompt": "Hello"})
        assert refused(answer) == (404, "model_not_found", "model")
        refusal = refused(await registry.http.put(PROD, json={"revision": 2}))
        assert refusal[0] == 409


@alive
async def test_of_two_who_saw_the_same_alias_the_second_is_stale(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await two_revisions(registry, folders)
        seen = (await registry.http.put(PROD, json={"revision": 1})).headers["etag"]
        assert seen == (await registry.http.get(PROD)).headers["etag"]
        first = await registry.http.put(PROD, json={"revision": 2}, headers={"If-Match": seen})
        second = await registry.http.put(PROD, json={"weights": {"1": 1, "2": 1}}, headers={"If-Match": seen})
        assert first.status_code == 200
        assert refused(second)[:2] == (412, "stale")
        await registry.http.delete(PROD)
        gone = await registry.http.put(PROD, json={"revision": 2}, headers={"If-Match": first.headers["etag"]})
        assert refused(gone)[:2] == (412, "stale")
        anew = (await registry.http.put(PROD, json={"revision": 2})).headers["etag"]
        assert anew not in (seen, first.headers["etag"])


@alive
async def test_many_moves_at_once_leave_one_line_each_and_one_state(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await two_revisions(registry, folders)
        await registry.http.put(PROD, json={"revision": 1})
        moves = [{"weights": {"1": weight, "2": 1}} for weight in range(2, 18)]
        answers = await asyncio.gather(*(registry.http.put(PROD, json=move) for move in moves))
        assert {answer.status_code for answer in answers} == {200}
        last = (await registry.http.get(PROD)).json()
        assert len(last["history"]) == len(moves)
        lines = await registry.admin.database.run(
            lambda session: session.scalars(select(AuditLine).where(AuditLine.subject == "org/pirate@prod")).all()
        )
        assert [line.action for line in lines] == ["alias"] * (len(moves) + 1)
        assert all(line.before == earlier.after for earlier, line in pairwise(lines))


@alive
async def test_who_says_the_same_stays_with_the_same_revision(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await two_revisions(registry, folders)
        await registry.http.put(PROD, json={"weights": {"1": 50, "2": 50}})
        by_user = {
            user: {await speaker(registry, "org/pirate@prod", user=user) for _ in range(3)} for user in "abcdefgh"
        }
        assert all(len(speakers) == 1 for speakers in by_user.values())
        assert len({next(iter(speakers)) for speakers in by_user.values()}) == 2
        await registry.http.put(PROD, json={"sticky_header": "X-Session"})
        for session in "abc":
            headers = {"x-session": session}
            found = {await speaker(registry, "org/pirate@prod", user=user, headers=headers) for user in "abcdefgh"}
            assert len(found) == 1


def test_shares_follow_the_weights_and_a_change_moves_as_few_as_it_must() -> None:
    users = [f"user-{at}" for at in range(10_000)]
    before, after = Route({3: 95, 4: 5}), Route({3: 80, 4: 20})
    chosen = {user: (before.choose("t/a/prod", user), after.choose("t/a/prod", user)) for user in users}
    moved = Counter(pair for pair in chosen.values() if pair[0] != pair[1])
    assert 400 < sum(first == 4 for first, _ in chosen.values()) < 600
    assert set(moved) == {(3, 4)}
    assert 1350 < moved[3, 4] < 1650


def test_without_a_sticky_value_chance_follows_the_weights() -> None:
    route = Route({1: 3, 2: 1})
    chosen = Counter(route.choose("t/a/prod", None) for _ in range(4000))
    assert 850 < chosen[2] < 1150


@alive
async def test_a_public_adapter_needs_the_scope_and_one_name(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await registry.upload("org/pirate", folders[0])
        seen = (await registry.http.get(PIRATE)).headers["etag"]
        changed = await registry.http.patch(
            PIRATE, json={"public": True, "description": "Arr"}, headers={"If-Match": seen}
        )
        assert (changed.json()["public"], changed.json()["description"]) == (True, "Arr")
        assert changed.headers["etag"] != seen
        assert refused(await registry.http.patch(PIRATE, json={"public": False}, headers={"If-Match": seen}))[0] == 412


@alive
async def test_a_model_is_listed_by_its_bare_name_and_shown_by_any(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await two_revisions(registry, folders)
        await registry.http.put(PROD, json={"weights": {"1": 10, "2": 90}})
        assert await registry.models() == [BASE, "org/pirate"]
        shown = [(await registry.http.get(f"/v1/models/org/pirate{x}")).json() for x in ("", "@1", "@2", "@prod")]
        assert [model["id"] for model in shown] == [f"org/pirate{x}" for x in ("", "@1", "@2", "@prod")]
        assert [model["revision"] for model in shown] == [1, 1, 2, 2]
        assert refused(await registry.http.get("/v1/models/org/pirate@3"))[:2] == (404, "model_not_found")


@alive
async def test_a_canary_that_fails_is_taken_back_and_the_audit_says_why(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await two_revisions(registry, folders)
        bounds = {"max_p95_seconds": 0.0, "min_requests": 3}
        await registry.http.put(PROD, json={"revision": 1})
        await registry.http.put(PROD, json={"revision": 2, "bounds": bounds})
        async with asyncio.timeout(20):
            while await speaker(registry, "org/pirate@prod") == "org/pirate@2":
                await asyncio.sleep(0)  # an application that is asked in this process gives way to nobody
        lines = await registry.admin.database.run(
            lambda session: session.scalars(select(AuditLine).where(AuditLine.action == "rollback")).all()
        )
        assert [(line.actor, line.after["why"]["revision"]) for line in lines if line.after] == [("registry", 2)]


@alive
async def test_of_two_public_adapters_of_one_name_the_second_is_refused(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await registry.http.post("/admin/v1/tenants", json={"name": "other"})
        for tenant in ("default", "other"):
            registry.http.params = httpx.QueryParams(tenant=tenant)
            await registry.upload("org/pirate", folders[0])
        first = await registry.http.patch(PIRATE, json={"public": True})
        assert first.json()["tenant"] == "other"
        registry.http.params = httpx.QueryParams()
        second = await registry.http.patch(PIRATE, json={"public": True})
        assert refused(second) == (409, "name_taken", "public")
