"""Characters and numbers that a database cannot keep: refused in words, by either database, and never a crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aril.lora.config import CONFIG_FILE, WEIGHTS_FILE
from builders.registry import ADAPTERS, Place, alive

PATHS = [
    f"{ADAPTERS}/%00",
    f"{ADAPTERS}/a%00b/revisions/1",
    f"{ADAPTERS}?query=%00",
    f"{ADAPTERS}?cursor=%00@1",
    f"{ADAPTERS}?cursor=a@99999999999999999999",
    f"{ADAPTERS}?cursor=a@{'9' * 500}",
    f"{ADAPTERS}?tenant=%00",
    f"{ADAPTERS}/a/revisions/{'9' * 500}",
    "/admin/v1/uploads/%00",
    "/admin/v1/usage?model=%00&key=%00",
    "/admin/v1/usage?tenant=%00",
    "/admin/v1/audit?actor=%00",
    "/admin/v1/audit?cursor=99999999999",
    "/admin/v1/keys/%00",
    "/admin/v1/keys?cursor=%00",
    "/admin/v1/tenants/%00",
    "/admin/v1/tenants?cursor=%00",
    "/v1/models/%00",
]


@pytest.mark.parametrize("field", ["note", "tags", "description"])
@alive
async def test_a_nul_is_taken_in_nowhere(place: Place, folders: list[Path], field: str) -> None:
    async with place.running() as registry:
        answer = await registry.upload("a", folders[0], **{"note": "", field: "x\0y"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field if field != "tags" else "tags[0]")
        await registry.upload("a", folders[0])
        answer = await registry.http.patch(f"{ADAPTERS}/a", json={"description": "x\0y"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "description")
        spec = {"size": 1, "sha256": "0" * 64}
        body = {"name": "a", field: ["x\0y"] if field == "tags" else "x\0y"}
        body["files"] = {CONFIG_FILE: spec, WEIGHTS_FILE: spec}
        answer = await registry.http.post("/admin/v1/uploads", json=body)
        assert answer.status_code == 400


@alive
async def test_no_place_for_a_text_is_a_fault_of_the_server(place: Place) -> None:
    async with place.running() as registry:
        for path in PATHS:
            answer = await registry.http.get(path)
            assert answer.status_code < 500, f"{path}: {answer.text}"
        answer = await registry.http.post("/admin/v1/keys", json={"name": "k", "tenant": "\0"})
        assert answer.status_code in (400, 404)


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-1", "1e400", "9" * 4000, "9" * 5000, "0.5", "true", '"5"', "[" * 10_000]
)
@alive
async def test_absurd_numbers_are_refused_wherever_an_alias_takes_one(
    sqlite_place: Place, folders: list[Path], number: str
) -> None:
    async with sqlite_place.running() as registry:
        await registry.upload("a", folders[0])
        before = (await registry.http.get(f"{ADAPTERS}/a/aliases/default")).json()
        for body in (
            '{"revision": %s}',
            '{"weights": {"1": %s}}',
            '{"revision": 1, "shadow": {"revision": %s, "share": 0.5}}',
            '{"revision": 1, "shadow": {"revision": 1, "share": -%s}}',
            '{"revision": 1, "bounds": {"max_error_rate": 0.1, "min_requests": %s}}',
            '{"revision": 1, "bounds": {"max_error_rate": 0.1, "window_seconds": -%s}}',
        ):
            answer = await registry.http.put(f"{ADAPTERS}/a/aliases/default", content=body % number)
            assert answer.status_code in (400, 404), f"{body % number[:20]}: {answer.text}"
        assert (await registry.http.get(f"{ADAPTERS}/a/aliases/default")).json() == before


@alive
async def test_an_origin_that_a_proxy_made_up_fails_no_change(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        registry.http._transport.client = ("x" * 5000, 1)  # type: ignore[attr-defined]
        assert (await registry.upload("a", folders[0])).status_code == 202
        line = (await registry.http.get("/admin/v1/audit", params={"action": "upload"})).json()["data"][0]
        assert line["origin"] == "x" * 64
        assert json.loads((await registry.http.get("/admin/v1/audit/verify")).text)["sound"]
