"""Uploads in parts: what was acknowledged stays, whatever is killed or sent twice, and nothing else counts."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from aril.core.callers import EVERYTHING, Caller
from aril.core.errors import NotFound
from builders.parts import UPLOADS, Sender, digest_header, files_of
from builders.registry import ADAPTERS, Place, Registry, alive

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def code_of(response: httpx.Response, status: int) -> str:
    """The error code of a response that must have `status`."""
    assert response.status_code == status, response.text
    return str(response.json()["error"]["code"])


async def begun(registry: Registry, folder: Path, **fields: object) -> Sender:
    """An upload that has been announced."""
    sender = Sender(registry.http, files_of(folder))
    assert (await sender.announce(**fields)).status_code == 201  # type: ignore[arg-type]
    return sender


def parts_in(place: Place) -> list[str]:
    """Every part in the store."""
    return sorted(path.name for path in (place.state / "store" / "uploads").glob("*/*"))


@alive
async def test_an_upload_in_parts_is_the_same_as_a_plain_one(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        plain = (await registry.upload("plain", folders[0])).json()
        sender = await begun(registry, folders[0], note="in parts", tags=["a", "b"])
        await sender.send(part_bytes=1000)
        done = await sender.complete()
        assert done.status_code == 202
        assert (done.json()["state"], done.json()["digest"]) == ("complete", plain["digest"])
        revision = (await registry.http.get(done.json()["revision_url"])).json()
        assert (revision["number"], revision["note"], revision["tags"]) == (1, "in parts", ["a", "b"])
        assert parts_in(place) == []


@alive
async def test_an_upload_goes_on_after_a_crash_where_the_server_says(place: Place, folders: list[Path]) -> None:
    async with place.running(crash=True) as registry:
        sender = await begun(registry, folders[0])
        await sender.put(WEIGHTS, 0, sender.files[WEIGHTS][:1000])
    async with place.running() as registry:
        sender.http = registry.http
        assert (await sender.state())["files"][WEIGHTS]["received"] == 1000
        await sender.send()
        assert (await sender.complete()).status_code == 202


@alive
async def test_another_server_on_the_same_store_goes_on(place: Place, folders: list[Path]) -> None:
    async with place.running() as one, place.running() as two:
        sender = await begun(one, folders[0])
        await sender.put(WEIGHTS, 0, sender.files[WEIGHTS][:1000])
        sender.http = two.http
        await sender.send()
        sender.http = one.http
        assert (await sender.complete()).status_code == 202
        sender.http = two.http
        assert (await sender.complete()).json()["state"] == "complete"


@alive
async def test_an_archive_may_come_in_parts(sqlite_place: Place, folders: list[Path]) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files_of(folders[0]).items():
            archive.writestr(f"pirate/{name}", data)
    async with sqlite_place.running() as registry:
        sender = Sender(registry.http, {"pirate.zip": packed.getvalue()})
        await sender.announce()
        await sender.send(part_bytes=5000)
        assert (await sender.complete()).json()["state"] == "complete"


@alive
async def test_a_part_at_the_wrong_place_is_answered_with_the_right_one(
    sqlite_place: Place, folders: list[Path]
) -> None:
    async with sqlite_place.running() as registry:
        sender = await begun(registry, folders[0])
        await sender.put(WEIGHTS, 0, b"x" * 100)
        for offset in (0, 99, 101):
            answer = await sender.put(WEIGHTS, offset, b"y")
            assert code_of(answer, 409) == "wrong_offset"
            assert answer.headers["upload-offset"] == "100"
        ranged = {"Content-Range": "bytes 100-101/*", "Content-Digest": digest_header(b"yz")}
        answer = await registry.http.put(f"{sender.url}/files/{WEIGHTS}", content=b"yz", headers=ranged)
        assert answer.headers["upload-offset"] == "102"


@alive
async def test_a_part_with_the_wrong_checksum_does_no_harm(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        sender = await begun(registry, folders[0])
        wrong = {"Content-Digest": digest_header(b"other")}
        assert code_of(await sender.put(WEIGHTS, 0, b"x" * 100, **wrong), 400) == "bad_checksum"
        for missing in ({"Content-Digest": ""}, {"Content-Digest": "md5=:AAAA:"}, {"Content-Digest": "sha-256=:AAAA:"}):
            assert code_of(await sender.put(WEIGHTS, 0, b"x" * 100, **missing), 400) == "checksum_missing"
        assert (await sender.state())["files"][WEIGHTS]["received"] == 0
        assert (parts_in(sqlite_place), sqlite_place.num_staged) == ([], 0)
        await sender.send()
        assert (await sender.complete()).status_code == 202


@alive
async def test_a_part_that_is_longer_than_what_is_missing_is_too_large(
    sqlite_place: Place, folders: list[Path]
) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield bytes(1 << 20)

    async with sqlite_place.running() as registry:
        sender = await begun(registry, folders[0])
        assert code_of(await sender.put(CONFIG, 0, sender.files[CONFIG] + b" "), 413) == "too_large"
        assert code_of(await sender.put(CONFIG, 0, endless(), **{"Content-Digest": digest_header(b"")}), 413)
        assert read < 5
        assert parts_in(sqlite_place) == []


@alive
async def test_of_two_parts_at_once_one_counts(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        sender = await begun(registry, folders[0])
        part = sender.files[WEIGHTS][:1000]
        answers = await asyncio.gather(*(sender.put(WEIGHTS, 0, part) for _ in range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
        assert len(parts_in(place)) == 1


@alive
async def test_an_upload_that_lacks_something_cannot_be_completed(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        sender = await begun(registry, folders[0])
        await sender.put(CONFIG, 0, sender.files[CONFIG])
        answer = await sender.complete()
        assert code_of(answer, 409) == "upload_incomplete"
        assert f"{WEIGHTS} is at 0 of" in answer.json()["error"]["message"]


@alive
async def test_completing_again_gives_the_same_answer(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        sender = await begun(registry, folders[0])
        await sender.send()
        first, again = await asyncio.gather(sender.complete(), sender.complete())
        assert first.json() == again.json() == (await sender.complete()).json()
        assert len((await registry.http.get(f"{ADAPTERS}/pirate")).json()["revisions"]) == 1
        assert code_of(await sender.put(WEIGHTS, 0, b"x"), 409) == "upload_closed"


@alive
async def test_bytes_that_are_not_those_announced_end_the_upload(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        sender = await begun(registry, folders[0])
        sender.files = {**sender.files, WEIGHTS: bytes(len(sender.files[WEIGHTS]))}
        await sender.send()
        assert code_of(await sender.complete(), 400) == "bad_checksum"
        state = await sender.state()
        assert (state["state"], state["problem"]["code"]) == ("failed", "bad_checksum")
        assert parts_in(sqlite_place) == []
        assert (await registry.http.get(ADAPTERS)).json()["data"] == []


@alive
async def test_an_adapter_that_cannot_be_served_ends_the_upload_with_its_problems(
    sqlite_place: Place, folders: list[Path]
) -> None:
    config = b'{"peft_type": "LORA", "r": 3, "use_dora": true, "bias": "all"}'
    async with sqlite_place.running() as registry:
        sender = Sender(registry.http, {**files_of(folders[0]), CONFIG: config})
        await sender.announce()
        await sender.send()
        assert code_of(await sender.complete(), 400) == "invalid_adapter"
        assert any("DoRA" in problem for problem in (await sender.state())["problem"]["problems"])


@alive
async def test_an_upload_can_be_given_up(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        sender = await begun(registry, folders[0])
        await sender.send()
        assert (await registry.http.delete(sender.url)).status_code == 204
        assert parts_in(place) == []
        for answer in (await registry.http.get(sender.url), await sender.complete(), await sender.put(CONFIG, 0, b"x")):
            assert code_of(answer, 404) == "upload_not_found"


@alive
async def test_what_nobody_comes_back_for_is_forgotten(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        sender = await begun(registry, folders[0])
        await sender.send()
        with registry.admin.database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE uploads SET expires = 1")
        await registry.admin.arrivals.tend()
        assert parts_in(place) == []
        assert (await registry.http.get(UPLOADS)).json()["data"] == []


@alive
async def test_parts_that_no_upload_names_go(sqlite_place: Place, tmp_path: Path) -> None:
    store = sqlite_place.store
    with store.scratch() as folder:
        (folder / "part").write_bytes(b"x")
        store.parts.keep("upload_gone", "0-aa", folder / "part")
    async with sqlite_place.running():
        assert parts_in(sqlite_place) == []


@alive
async def test_another_tenants_upload_does_not_exist(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        sender = await begun(registry, folders[0])
        stranger = Caller(name="key_x", tenant="other", tenant_id=2, scopes=EVERYTHING)
        id = sender.url.rpartition("/")[2]
        with pytest.raises(NotFound) as refusal:
            await registry.admin.arrivals.get(stranger, id)
        with pytest.raises(NotFound) as unknown:
            await registry.admin.arrivals.get(stranger, "upload_" + "0" * 24)
        assert refusal.value.message.replace(id, "") == unknown.value.message.replace("upload_" + "0" * 24, "")
        assert await registry.admin.arrivals.all(stranger) == []


@alive
async def test_a_tenant_has_so_much_under_way_and_no_more(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running(max_upload_bytes=1000) as registry:
        small = Sender(registry.http, {CONFIG: b"{}"})
        for _ in range(32):
            assert (await small.announce()).status_code == 201
        assert code_of(await small.announce(), 429) == "too_many_uploads"
        assert code_of(await Sender(registry.http, {CONFIG: bytes(1001)}).announce(), 413) == "too_large"
        for upload in (await registry.http.get(UPLOADS)).json()["data"]:
            await registry.http.delete(upload["status_url"])
        large = Sender(registry.http, {CONFIG: bytes(1000)})
        for _ in range(8):
            assert (await large.announce()).status_code == 201
        assert code_of(await large.announce(), 429) == "too_many_uploads"


@alive
async def test_what_a_tenant_could_not_keep_is_refused_before_it_comes(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        await registry.http.patch("/admin/v1/tenants/default", json={"max_adapter_bytes": 100})
        assert (await Sender(registry.http, {CONFIG: bytes(100)}).announce()).status_code == 201
        assert code_of(await Sender(registry.http, {CONFIG: bytes(101)}).announce(), 409) == "quota_exceeded"


@pytest.mark.parametrize(
    "files", [{"../a": b""}, {"adapter_model.bin": b""}, {"a.zip": b"", CONFIG: b""}, {"a.zip": b"", "b.zip": b""}]
)
@alive
async def test_only_files_of_an_adapter_or_an_archive_are_announced(
    sqlite_place: Place, files: dict[str, bytes]
) -> None:
    async with sqlite_place.running() as registry:
        answer = await Sender(registry.http, files).announce()
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "files")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"files": {}}, "files"),
        ({"files": {CONFIG: {"size": -1, "sha256": "0" * 64}}}, "files.adapter_config.json.size"),
        ({"files": {CONFIG: {"size": 1, "sha256": "zz"}}}, None),
        ({"colour": "red"}, "colour"),
        ({"golden": [{"prompt": "x"}]}, "golden"),
        ({"tags": ["x" * 65]}, "tags[0]"),
    ],
)
@alive
async def test_an_announcement_that_is_wrong_is_refused_by_field(
    sqlite_place: Place, change: dict[str, object], field: str | None
) -> None:
    body = {"name": "pirate", "files": {CONFIG: {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}}, **change}
    async with sqlite_place.running() as registry:
        answer = await registry.http.post(UPLOADS, json=body)
        assert answer.status_code == 400, answer.text
        if field is not None:
            assert answer.json()["error"]["param"] == field or field.startswith("files.")


@alive
async def test_an_announcement_that_is_sent_again_is_made_once(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        body = {"name": "pirate", "files": {CONFIG: {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}}}
        headers = {"Idempotency-Key": "one"}
        first, again = [await registry.http.post(UPLOADS, json=body, headers=headers) for _ in range(2)]
        assert (first.status_code, first.json()) == (201, again.json())
        assert first.headers["location"] == again.headers["location"]
        other = await registry.http.post(UPLOADS, json={**body, "note": "else"}, headers=headers)
        assert code_of(other, 409) == "idempotency_key_reused"
        assert len((await registry.http.get(UPLOADS)).json()["data"]) == 1
