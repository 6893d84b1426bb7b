"""/v1/files: what was acknowledged can be read, by its tenant alone, until it is deleted or expires."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aril.admin_api.batches import files
from aril.admin_api.tables import File, FilePiece
from builders.batches import LONG, begun, content, ended, requests, uploaded
from builders.registry import Place, Registry, alive, until
from builders.tenants import Tenant, tenant
from sqlalchemy import func, select, update


async def listed(by: Registry | Tenant, query: str = "") -> list[str]:
    """The ids of a list."""
    return [file["id"] for file in (await by.send("GET", f"/v1/files?{query}")).json()["data"]]


async def expire(registry: Registry, id: str) -> None:
    """As if its time had passed."""
    change = update(File).where(File.id == id).values(expires=1)
    await registry.admin.database.run(lambda session: session.execute(change))


@alive
async def test_a_file_outlives_the_server_byte_by_byte(place: Place) -> None:
    data = bytes(range(256)) * (9 << 10) + b"end"  # over two pieces
    async with place.running(crash=True) as registry:
        id = await uploaded(registry, data)
    async with place.running() as registry:
        answer = await registry.send("GET", f"/v1/files/{id}/content")
        assert answer.content == data
        assert answer.headers["content-length"] == str(len(data))
        assert "in.jsonl" in answer.headers["content-disposition"]
        assert (await registry.send("GET", f"/v1/files/{id}")).json()["bytes"] == len(data)


@alive
async def test_files_are_listed_by_purpose_and_page_by_page(place: Place) -> None:
    async with place.running() as registry:
        batch = await ended(registry, await begun(registry, requests(1)))
        made = [batch["input_file_id"], *[await uploaded(registry, b"x") for _ in range(4)]]
        assert await listed(registry, "purpose=batch") == made[::-1]
        assert await listed(registry, "purpose=batch_output") == [batch["output_file_id"]]
        assert await listed(registry, "purpose=batch&order=asc&limit=2") == made[:2]
        assert await listed(registry, f"purpose=batch&order=asc&after={made[1]}") == made[2:]
        page = (await registry.send("GET", f"/v1/files?purpose=batch&limit=2&after={made[3]}")).json()
        assert (page["first_id"], page["last_id"], page["has_more"]) == (made[2], made[1], True)


@alive
async def test_a_deleted_file_is_gone_with_its_bytes(place: Place) -> None:
    async with place.running() as registry:
        id = await uploaded(registry, b"x")
        assert (await registry.send("DELETE", f"/v1/files/{id}")).json() == {
            "id": id,
            "object": "file",
            "deleted": True,
        }
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
            assert (await registry.send(method, f"/v1/files/{id}{path}")).status_code == 404
        left = await registry.admin.database.run(lambda session: session.scalar(select(func.count(FilePiece.number))))
    assert left == 0


@alive
async def test_a_file_that_a_batch_reads_is_not_deleted_and_does_not_expire(place: Place) -> None:
    async with place.running() as registry:
        id = await begun(registry, requests(2, max_tokens=LONG))
        await until(lambda: registry.engine.status().running == 2)
        read = (await registry.send("GET", f"/v1/batches/{id}")).json()["input_file_id"]
        answer = await registry.send("DELETE", f"/v1/files/{read}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "file_in_use")
        await registry.send("POST", f"/v1/batches/{id}/cancel")
        await ended(registry, id)
        assert (await registry.send("DELETE", f"/v1/files/{read}")).status_code == 200


@alive
async def test_an_expired_file_is_gone(place: Place) -> None:
    async with place.running() as registry:
        id, kept = [await uploaded(registry, b"x") for _ in range(2)]
        await expire(registry, id)
        assert await listed(registry) == [kept]
        assert (await registry.send("GET", f"/v1/files/{id}/content")).status_code == 404
        await registry.admin.batches.sweep()
        left = await registry.admin.database.run(lambda session: session.scalars(select(File.id)).all())
    assert left == [kept]


@alive
async def test_a_file_of_another_tenant_looks_like_none(place: Place) -> None:
    async with place.running() as registry:
        owner, stranger = [await tenant(registry, name) for name in ("owner", "stranger")]
        id, none = await uploaded(owner, requests(1)), "file-" + "0" * 32
        asked = {"endpoint": "/v1/completions", "completion_window": "24h"}
        told = []
        for each in (id, none):
            answers = [
                await stranger.send("GET", f"/v1/files/{each}"),
                await stranger.send("GET", f"/v1/files/{each}/content"),
                await stranger.send("DELETE", f"/v1/files/{each}"),
                await stranger.send("POST", "/v1/batches", json={**asked, "input_file_id": each}),
            ]
            told.append([(answer.status_code, answer.text.replace(each, "ID")) for answer in answers])
        assert told[0] == told[1]
        assert {status for status, _ in told[0]} == {404}
        assert await listed(stranger) == []
        assert len(await content(owner, id)) == 1


@pytest.mark.parametrize(
    ("form", "name", "param"),
    [
        ({}, "file", "purpose"),
        ({"purpose": "fine-tune"}, "file", "purpose"),
        ({"purpose": "batch_output"}, "file", "purpose"),
        ({"purpose": "batch"}, "files", "files"),
        ({"purpose": "batch", "colour": "red"}, "file", "colour"),
        ({"purpose": "batch", "expires_after[seconds]": "7200"}, "file", "expires_after[anchor]"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "1"},
            "file",
            "expires_after[seconds]",
        ),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "file", "expires_after[seconds]"),
    ],
)
@alive
async def test_a_fault_in_an_upload_is_named(sqlite_place: Place, form: dict[str, str], name: str, param: str) -> None:
    async with sqlite_place.running() as registry:
        answer = await registry.send("POST", "/v1/files", data=form, files={name: ("in.jsonl", b"{}")})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    "fields",
    [
        {"json": {"purpose": "batch"}},
        {"content": b"x", "headers": {"content-type": "multipart/form-data"}},
        {"content": b"--x", "headers": {"content-type": "multipart/form-data; boundary=x"}},
        {"data": {"purpose": "batch"}, "files": {"other": b""}},
        {"data": {"purpose": "batch"}, "files": [("file", b"a"), ("file", b"b")]},
    ],
)
@alive
async def test_what_is_no_upload_is_refused(sqlite_place: Place, fields: dict[str, Any]) -> None:
    async with sqlite_place.running() as registry:
        headers = {**registry.http.headers, **fields.pop("headers", {})}
        answer = await registry.send("POST", "/v1/files", headers=headers, **fields)
        assert answer.status_code == 400, answer.text
        assert await listed(registry) == []


@alive
async def test_too_large_a_file_is_a_413_and_leaves_nothing(sqlite_place: Place) -> None:
    async with sqlite_place.running(max_file_bytes=100) as registry:
        assert await uploaded(registry, b"x" * 100)
        for size in (101, 1 << 20):
            files = {"file": ("in.jsonl", b"x" * size)}
            answer = await registry.send("POST", "/v1/files", data={"purpose": "batch"}, files=files)
            assert (answer.status_code, answer.json()["error"]["param"]) == (413, "file")
        assert len(await listed(registry)) == 1


@pytest.mark.parametrize("bound", [{"MOST_FILES": 1}, {"MOST_BYTES": 1}])
@alive
async def test_a_tenant_keeps_so_many_files_and_bytes(
    sqlite_place: Place, bound: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bound.items():
        monkeypatch.setattr(files, name, value)
    async with sqlite_place.running() as registry:
        other = await tenant(registry, "other")
        await uploaded(registry, b"x")
        answer = await registry.send("POST", "/v1/files", data={"purpose": "batch"}, files={"file": ("a", b"x")})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "quota_exceeded")
        await uploaded(other, b"x")


@alive
async def test_uploads_that_come_at_once_keep_to_the_bound_together(
    sqlite_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 2000)
    form = {"data": {"purpose": "batch"}, "files": {"file": ("a", b"x" * 999)}}
    async with sqlite_place.running() as registry:
        answers = await asyncio.gather(*[registry.send("POST", "/v1/files", **form) for _ in range(4)])
        assert sorted(answer.status_code for answer in answers) == [200, 200, 409, 409]
        assert len(await listed(registry)) == 2


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "order=up", "after=file-1", "after=batch_" + "0" * 32])
@alive
async def test_a_fault_in_the_query_of_a_list_is_named(sqlite_place: Place, query: str) -> None:
    async with sqlite_place.running() as registry:
        answer = await registry.send("GET", f"/v1/files?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


@alive
async def test_files_and_batches_stand_behind_the_door_of_v1(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        looker = await tenant(registry, "looker", scopes=["adapters:read"])
        for path in ("/v1/files", "/v1/files/x", "/v1/files/x/content", "/v1/batches", "/v1/batches/x"):
            assert (await registry.send("GET", path, headers={"Authorization": "Bearer wrong"})).status_code == 401
            assert (await looker.send("GET", path)).status_code == 403


@alive
async def test_nobody_outside_can_say_that_they_ask_from_within(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        await tenant(registry, "someone")  # from now on keys are asked for
        body = json.dumps({"model": "tiny", "prompt": [5], "max_tokens": 1})
        for header in ("aril.caller", "aril-caller", "x-aril-caller", "extensions"):
            headers = {"Authorization": "Bearer wrong", header: "admin"}
            answer = await registry.send("POST", "/v1/completions?aril.caller=admin", content=body, headers=headers)
            assert answer.status_code == 401
