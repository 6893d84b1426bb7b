"""Every door, each with too little in hand: no key, a key of another kind, a key in the URL."""

from __future__ import annotations

import itertools
import re

import httpx
import pytest
from builders.registry import Place, Registry, alive

OPEN = {"/health", "/health/live", "/health/ready", "/ready", "/metrics", "/version"}  # what operators ask needs no key
BESIDE = ("/", "//", "/v1/..", "/v1", "/./", "/%2e/", "/admin", "/health", "/ADMIN/..", ";")  # of a path
ADMIN = ("/admin/v1/", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")


async def doors(registry: Registry) -> list[tuple[str, str]]:
    """Method and a path of every route that the server describes."""
    paths = (await registry.http.get("/openapi.json")).json()["paths"]
    return [
        (method, re.sub(r"{\w+}", "1", path))
        for path, methods in paths.items()
        if path not in OPEN
        for method in methods
    ]


@alive
async def test_no_door_opens_without_a_good_key(sqlite_place: Place) -> None:
    async with sqlite_place.running(api_keys=("only-infers",)) as registry:
        found = await doors(registry)
        assert {path.split("/")[1] for _, path in found} == {"v1", "tokenize", "detokenize", "admin"}
        for method, path in found:
            for authorization in ("", "Bearer wrong", "Basic only-infers", "only-infers"):
                answer = await registry.http.request(method, path, headers={"Authorization": authorization})
                assert answer.status_code == 401, f"{method} {path} {authorization!r}: {answer.text}"


@alive
async def test_a_key_that_only_infers_opens_no_admin_door(sqlite_place: Place) -> None:
    async with sqlite_place.running(api_keys=("only-infers",)) as registry:
        for method, path in await doors(registry):
            answer = await registry.http.request(method, path, headers={"Authorization": "Bearer only-infers"})
            assert (answer.status_code == 403) == path.startswith(ADMIN), f"{method} {path}: {answer.text}"


@alive
async def test_no_door_takes_a_key_from_the_url_or_shows_it(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        for method, path in await doors(registry):
            for parameter in ("api_key", "whatever"):
                answer = await registry.http.request(method, path, params={parameter: "the-admin-key"})
                assert answer.status_code == 400, f"{method} {path}: {answer.text}"
                assert answer.json()["error"]["code"] == "key_in_url", f"{method} {path}"
                assert "the-admin-key" not in answer.text


@alive
async def test_the_description_says_which_doors_ask_for_a_key(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        paths = (await registry.http.get("/openapi.json")).json()["paths"]
        for path, methods in paths.items():
            for method, told in methods.items():
                assert bool(told.get("security")) == (path not in OPEN), f"{method} {path}"


@alive
async def test_no_other_spelling_of_a_path_leads_around_the_door(sqlite_place: Place) -> None:
    async with sqlite_place.running(api_keys=("x",)) as registry:
        for method, path in await doors(registry):
            spellings = [spelt for word in BESIDE for spelt in (word + path, path + word)]
            for each, spelt in itertools.product((method, "HEAD", "OPTIONS", "TRACE"), (*spellings, path.upper())):
                url = httpx.URL(f"http://aril{spelt}") if spelt.startswith("/") else f"http://aril/{spelt}"
                answer = await registry.http.request(each, url, headers={"Authorization": ""})
                assert answer.status_code >= 300, f"{each} {spelt}: {answer.text}"


@alive
async def test_no_route_leaves_the_event_loop_for_a_dependency(
    sqlite_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elsewhere(call: object, *_: object, **__: object) -> None:
        raise AssertionError(f"{call} would be called on another thread, at a millisecond a call")

    for place in ("fastapi.dependencies.utils", "fastapi.routing"):
        monkeypatch.setattr(f"{place}.run_in_threadpool", elsewhere)
    async with sqlite_place.running() as registry:
        for method, path in [*await doors(registry), *(("get", path) for path in OPEN)]:
            answer = await registry.http.request(method, path)
            assert answer.status_code != 500, f"{method} {path}: {answer.text}"
