"""Lists of adapters: in pages by name, searched, by state, and within what a key may see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builders.registry import ADAPTERS, Place, Registry, alive

NAMES = ["a-1", "a-10", "a-2", "b/x", "b_y", "c"]


async def listed(registry: Registry, **params: Any) -> tuple[list[str], str | None]:
    """The names on a page, and where the next begins."""
    answer = await registry.http.get(ADAPTERS, params=params)
    assert answer.status_code == 200, answer.text
    return [adapter["name"] for adapter in answer.json()["data"]], answer.json()["next_cursor"]


@alive
async def test_pages_show_every_adapter_once_whatever_comes_between(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        for name in reversed(NAMES):
            await registry.upload(name, folders[0], description=f"This is {name}")
        found, cursor = await listed(registry, limit=2)
        await registry.upload("a-0", folders[0])  # before the cursor: not on a later page
        await registry.http.delete(f"{ADAPTERS}/a-10")  # the cursor itself
        while cursor is not None:
            page, cursor = await listed(registry, limit=2, cursor=cursor)
            found += page
        assert found == sorted(NAMES)


@alive
async def test_a_search_takes_its_words_as_they_are(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        for name in NAMES:
            await registry.upload(name, folders[0], description=f"100% {name.upper()}")
        assert await listed(registry, query="A-1") == (["a-1", "a-10"], None)
        assert await listed(registry, query="b_") == (["b_y"], None)
        assert await listed(registry, query="100% c") == (["c"], None)
        assert await listed(registry, query="none") == ([], None)
        await registry.upload("c", folders[1], activate="false")
        await registry.http.post(f"{ADAPTERS}/c/revisions/2/retire")
        assert await listed(registry, state="retired") == (["c"], None)
        assert await listed(registry, state="ready", query="c") == (["c"], None)


@alive
async def test_a_list_tells_of_an_adapter_what_the_adapter_tells(place: Place, folders: list[Path]) -> None:
    said = {
        "description": '"quotes" \u00e9\n',
        "note": "first",
        "tags": "a,b",
        "golden": '[{"prompt": "a", "regex": "."}]',
    }
    async with place.running() as registry:
        await registry.upload("told", folders[0], **said)
        await registry.upload("told", folders[1], activate="false")
        moves: list[dict[str, Any]] = [
            {"revision": 1, "shadow": {"revision": 2, "share": 0.5}, "bounds": {"max_error_rate": 0.5}},
            {"weights": {"1": 3, "2": 7}, "sticky_header": "x-who"},
        ]
        for body in moves:
            assert (await registry.http.put(f"{ADAPTERS}/told/aliases/prod", json=body)).is_success
        await registry.upload("idle", folders[0], activate="false")
        page = (await registry.http.get(ADAPTERS)).json()
        alone = [(await registry.http.get(f"{ADAPTERS}/{name}")).json() for name in ("idle", "told")]
        assert page == {"object": "list", "next_cursor": None, "data": alone}


@alive
async def test_an_odd_page_is_refused_by_field(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        for params, field in (({"cursor": "nowhere"}, "cursor"), ({"limit": 0}, "limit"), ({"state": "odd"}, "state")):
            answer = await registry.http.get(ADAPTERS, params=params)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text
