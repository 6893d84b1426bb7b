"""Canaries and shadows of the whole house: asked over HTTP, judged by real requests, taken back once."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from aril.core.errors import Unavailable
from builders.registry import ADAPTERS, Place, Registry, alive

ALIAS = f"{ADAPTERS}/pirate/aliases/prod"
TOO_SLOW = {"max_p95_seconds": 1e-6, "min_requests": 3}  # whatever it does


async def two_revisions(registry: Registry, folders: list[Path]) -> None:
    """`pirate@prod` leads to the first of two."""
    for folder in folders[:2]:
        assert (await registry.upload("pirate", folder)).is_success
    await put(registry, revision=1)


async def put(registry: Registry, **said: Any) -> dict[str, Any]:
    """Change the alias."""
    answer = await registry.http.put(ALIAS, json=said)
    assert answer.is_success, answer.text
    view: dict[str, Any] = answer.json()
    return view


async def alias(registry: Registry) -> dict[str, Any]:
    """The alias as it stands."""
    view: dict[str, Any] = (await registry.http.get(ALIAS)).json()
    return view


async def ask(registry: Registry, times: int = 1) -> list[httpx.Response]:
    """Some completions through the alias, one after another."""
    body = {"model": "pirate@prod", "prompt": "a", "max_tokens": 4, "ignore_eos": True, "temperature": 0}
    return [await registry.http.post("/v1/completions", json=body) for _ in range(times)]


async def until_it_leads_to(registry: Registry, number: int) -> None:
    """Until requests go to that revision."""
    async with asyncio.timeout(20):
        while (await alias(registry))["revision"] != number or (await meant(registry)) != number:
            await asyncio.sleep(0.01)


async def meant(registry: Registry) -> int | None:
    """The revision that requests go to, if they can."""
    with suppress(Unavailable):
        ref = await registry.resolve("pirate@prod")
        return ref and ref.revision
    return None


@alive
async def test_a_canary_that_crosses_its_bounds_is_taken_back_and_the_audit_says_why(
    place: Place, folders: list[Path]
) -> None:
    async with place.running() as registry:
        await two_revisions(registry, folders)
        await put(registry, weights={"2": 100}, bounds=TOO_SLOW)
        spoke = {answer.headers["x-aril-adapter"] for answer in await ask(registry, 3)}
        await until_it_leads_to(registry, 1)
        [after] = await ask(registry)
        lines = (await registry.http.get("/admin/v1/audit")).json()["data"]
        [line] = [line for line in lines if line["action"] == "rollback"]
        assert (spoke, after.headers["x-aril-adapter"]) == ({"pirate@2"}, "pirate@1")
        assert (line["after"]["why"]["revision"], line["after"]["why"]["requests"]) == (2, 3)


@alive
async def test_a_canary_within_its_bounds_stays(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await two_revisions(registry, folders)
        await put(
            registry, weights={"2": 100}, bounds={"max_error_rate": 0.5, "max_p95_seconds": 600, "min_requests": 3}
        )
        await ask(registry, 5)
        view = await alias(registry)
        assert view["weights"] == {"2": 100}
        assert view["seen"]["watched"]["2"]["requests"] == 5


@alive
async def test_an_alias_tells_what_has_come_of_its_shadow(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await two_revisions(registry, folders)
        await put(registry, shadow={"revision": 2, "share": 1})
        spoke = {answer.headers["x-aril-adapter"] for answer in await ask(registry, 2)}
        async with asyncio.timeout(20):
            while ((await alias(registry))["seen"]["shadow"] or {}).get("answered") != 2:
                await asyncio.sleep(0.01)
        shadow = (await alias(registry))["seen"]["shadow"]
        assert spoke == {"pirate@1"}
        assert (shadow["tokens"], shadow["compared_tokens"]) == (8, 8)
        assert 0 <= shadow["equal_share"] <= 1


@alive
async def test_a_canary_that_cannot_be_loaded_is_taken_back(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await two_revisions(registry, folders)
        await put(registry, weights={"2": 100}, bounds={"max_error_rate": 0.5, "min_requests": 3})
        lose(registry, 2)
        assert [answer.status_code for answer in await ask(registry, 3)] == [503, 503, 503]
        await until_it_leads_to(registry, 1)
        assert [answer.status_code for answer in await ask(registry)] == [200]


@alive
async def test_a_shadow_that_cannot_be_loaded_is_in_nobody_s_way(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await two_revisions(registry, folders)
        await put(registry, shadow={"revision": 2, "share": 1})
        lose(registry, 2)
        assert [answer.status_code for answer in await ask(registry, 2)] == [200, 200]
        async with asyncio.timeout(20):
            while ((await alias(registry))["seen"]["shadow"] or {}).get("failed") != 2:
                await asyncio.sleep(0.01)


def lose(registry: Registry, number: int) -> None:
    """The bytes of a revision of `pirate` are no longer where they should be."""
    listed = registry.admin.catalog.seen("default", "pirate")
    assert listed is not None
    shutil.rmtree(registry.store.path(listed.revisions[number].digest))
