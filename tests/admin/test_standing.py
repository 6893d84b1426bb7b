"""What a key may have of the engine: nobody passes others, and no tenant learns what another has asked."""

from __future__ import annotations

from typing import Any

import pytest
from builders.registry import BASE, Place, Registry, alive
from builders.tenants import Tenant, tenant

FIRST = iter(range(3, 500))


@pytest.fixture
def prompt() -> list[int]:
    """One that nobody has sent before."""
    return [next(FIRST), *range(3, 60)]


async def cached(who: Tenant, prompt: list[int], **fields: Any) -> int:
    """How many tokens of `prompt` were cached."""
    body = {"model": BASE, "prompt": prompt, "max_tokens": 1, **fields}
    answer = await who.send("POST", "/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def status(who: Tenant, priority: int) -> tuple[int, str]:
    """How a request of that priority is answered, and what is said of it."""
    body = {"model": BASE, "prompt": [5], "max_tokens": 1, "priority": priority}
    answer = await who.send("POST", "/v1/completions", json=body)
    return answer.status_code, answer.text


@alive
async def test_a_tenant_cannot_tell_what_another_has_asked(place: Place, prompt: list[int]) -> None:
    async with place.running() as registry:
        one, other = [await tenant(registry, name) for name in ("one", "other")]
        assert await cached(one, prompt) == 0
        assert await cached(other, prompt) == 0
        assert await cached(one, prompt) > 0
        assert await cached(other, prompt) > 0


@alive
async def test_keys_of_one_tenant_share_what_is_cached(place: Place, prompt: list[int]) -> None:
    async with place.running() as registry:
        keys = [await tenant(registry, "one") for _ in range(2)]
        assert [await cached(key, prompt) > 0 for key in keys] == [False, True]


@alive
async def test_a_salt_separates_within_a_tenant_too(place: Place, prompt: list[int]) -> None:
    async with place.running() as registry:
        one = await tenant(registry, "one")
        found = [await cached(one, prompt, cache_salt=salt) > 0 for salt in ("a", "b", "a", None)]
        assert found == [False, False, True, False]


@alive
async def test_a_salt_does_not_lead_into_another_tenants_cache(place: Place, prompt: list[int]) -> None:
    async with place.running() as registry:
        one, other = [await tenant(registry, name) for name in ("one", "other")]
        await cached(one, prompt, cache_salt="a")
        for salt in ("a", "1:a", "2:a", "3:a", ":a"):
            assert await cached(other, prompt, cache_salt=salt) == 0


@alive
async def test_of_several_keys_only_the_admins_passes_others(place: Place) -> None:
    async with place.running() as registry:
        one, _ = [await tenant(registry, name) for name in ("one", "other")]
        admin = await tenant(registry, "one", scopes=["admin", "infer"])
        refused, why = await status(one, -1)
        assert refused == 400
        assert "from 0 to 1073741823" in why
        assert '"param":"priority"' in why
        assert [(await status(one, priority))[0] for priority in (0, 5, 2**30 - 1)] == [200] * 3
        assert [(await status(admin, priority))[0] for priority in (-1, -(2**30))] == [200] * 2


@pytest.mark.parametrize("priority", [2**30, 2**31, 10**30, -(2**30) - 1])
@alive
async def test_nobody_is_below_work_that_nobody_waits_for(place: Place, priority: int) -> None:
    async with place.running() as registry:
        assert (await anyone(registry, priority)) == 400


@alive
async def test_who_is_alone_passes_nobody(place: Place) -> None:
    async with place.running() as registry:
        assert (await anyone(registry, -5)) == 200
        only = await tenant(registry, "one")
        assert (await status(only, -5))[0] == 200
        await tenant(registry, "one")
        assert (await status(only, -5))[0] == 400


async def anyone(registry: Registry, priority: int) -> int:
    """The status of a request without a key."""
    body = {"model": BASE, "prompt": [5], "max_tokens": 1, "priority": priority}
    headers = {"Authorization": ""}
    return (await registry.http.post("/v1/completions", json=body, headers=headers)).status_code
