"""The admin API as a client meets it: what it takes, what it refuses and in which words, and what it leaves behind."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from builders.registry import ADAPTERS, BASE, Place, Registry, alive

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LIMIT = 1 << 20


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response that must have `status`."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["message"]
    return error


def zipped(folder: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"{folder.name}/{file.name}")
    return packed.getvalue()


def tarred(folder: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(folder, folder.name)
    return packed.getvalue()


@alive
async def test_an_upload_tells_all_about_the_adapter(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        response = await registry.upload("org/pirate", folders[1], description="Talks like a pirate")
        assert response.status_code == 202
        answer = response.json()
        assert (answer["revision"], answer["state"], answer["name"]) == (1, "ready", "org/pirate")
        view = answer["adapter"]
        revision = view["revisions"][0]
        assert (view["name"], view["description"], view["active"]) == ("org/pirate", "Talks like a pirate", True)
        assert (view["revision"], view["digest"], view["fault"]) == (1, revision["digest"], None)
        assert (revision["rank"], revision["target_modules"]) == (5, ["q_proj", "v_proj"])
        assert revision["config"]["peft_type"] == "LORA"
        assert (await registry.http.get(f"{ADAPTERS}/org/pirate")).json() == view
        assert (await registry.http.get(ADAPTERS)).json() == {"object": "list", "data": [view], "next_cursor": None}


@alive
async def test_an_adapter_can_be_switched_off_and_on_and_deleted(place: Place, folders: list[Path]) -> None:
    async with place.running() as registry:
        await registry.upload("org/pirate", folders[0])
        off = await registry.http.post(f"{ADAPTERS}/org/pirate/deactivate")
        assert (off.json()["active"], await registry.models()) == (False, [BASE])
        on = await registry.http.post(f"{ADAPTERS}/org/pirate/activate")
        assert (on.json()["active"], await registry.models()) == (True, [BASE, "org/pirate"])
        gone = await registry.http.delete(f"{ADAPTERS}/org/pirate")
        assert gone.json() == {"object": "adapter", "name": "org/pirate", "deleted": True}
        assert (await registry.http.get(ADAPTERS)).json()["data"] == []


@alive
async def test_an_inactive_or_deleted_adapter_is_no_model(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        await registry.upload("pirate", folders[0], activate="false")
        body = {"model": "pirate", "prompt": "Hello", "max_tokens": 1}
        refused = error_of(await registry.http.post("/v1/completions", json=body), 404)
        assert (refused["code"], refused["param"]) == ("model_not_found", "model")


@alive
async def test_a_revision_can_be_chosen(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        for folder in folders[:2]:
            await registry.upload("pirate", folder)
        chosen = await registry.http.post(f"{ADAPTERS}/pirate/activate", params={"revision": "1"})
        assert chosen.json()["revision"] == 1
        error_of(await registry.http.post(f"{ADAPTERS}/pirate/activate", params={"revision": "7"}), 404)
        error_of(await registry.http.post(f"{ADAPTERS}/pirate/activate", params={"revision": "one"}), 400)


@pytest.mark.parametrize(("filename", "pack"), [("a.zip", zipped), ("a.tar.gz", tarred), ("a.tgz", tarred)])
@alive
async def test_an_archive_is_the_same_as_its_files(
    sqlite_place: Place, folders: list[Path], filename: str, pack: Any
) -> None:
    async with sqlite_place.running() as registry:
        plain = (await registry.upload("plain", folders[0])).json()
        files = {"file": (filename, pack(folders[0]))}
        packed = (await registry.http.post(ADAPTERS, data={"name": "packed"}, files=files)).json()
        assert packed["digest"] == plain["digest"]


@alive
async def test_every_problem_of_a_bad_adapter_is_listed(
    sqlite_place: Place, folders: list[Path], tmp_path: Path
) -> None:
    bad = shutil.copytree(folders[0], tmp_path / "bad")
    (bad / CONFIG).write_text('{"peft_type": "LORA", "r": 3, "use_dora": true, "bias": "all"}')
    async with sqlite_place.running() as registry:
        error = error_of(await registry.upload("bad", bad), 400)
        assert error["code"] == "invalid_adapter"
        assert any("DoRA" in problem for problem in error["problems"])
        assert any("bias" in problem for problem in error["problems"])


@alive
async def test_without_the_key_nothing_is_read(sqlite_place: Place, folders: list[Path]) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield bytes(1 << 16)

    async with sqlite_place.running() as registry:
        headers = {"Authorization": "Bearer wrong", "Content-Type": "multipart/form-data; boundary=b"}
        error = error_of(await registry.http.post(ADAPTERS, content=endless(), headers=headers), 401)
        assert error["code"] == "invalid_api_key"
        assert read <= 1
        for method, path in (("GET", ""), ("GET", "/a"), ("DELETE", "/a"), ("POST", "/a/activate")):
            answer = await registry.http.request(method, ADAPTERS + path, headers={"Authorization": ""})
            error_of(answer, 401)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
@alive
async def test_behind_a_key_a_body_is_json_whatever_it_says(sqlite_place: Place, kind: str) -> None:
    headers = {"Content-Type": kind}
    async with sqlite_place.running() as registry:
        for path in ("/admin/v1/tenants", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            read = await registry.http.post(path, content=b'{"colour": "red"}', headers=headers)
            assert error_of(read, 400)["code"] in ("unknown_field", "missing_required_parameter")
            keyless = await registry.http.post(path, content=b"{}", headers={**headers, "Authorization": ""})
            error_of(keyless, 401)


@alive
async def test_an_upload_over_the_limit_is_refused_while_it_comes(sqlite_place: Place) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="adapter_model.safetensors"\r\n\r\n'
        while True:
            read += 1
            yield bytes(1 << 16)

    async with sqlite_place.running(max_upload_bytes=LIMIT) as registry:
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        error = error_of(await registry.http.post(ADAPTERS, content=endless(), headers=headers), 413)
        assert str(LIMIT) in error["message"]
        assert read * (1 << 16) < 2 * LIMIT


@alive
async def test_an_upload_that_announces_too_much_is_refused_at_once(sqlite_place: Place) -> None:
    async with sqlite_place.running(max_upload_bytes=LIMIT) as registry:
        files = [("files", (WEIGHTS, bytes(2 * LIMIT)))]
        error_of(await registry.http.post(ADAPTERS, data={"name": "a"}, files=files), 413)


@alive
async def test_an_archive_that_unpacks_to_too_much_is_too_large(sqlite_place: Place, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb"
    bomb.mkdir()
    (bomb / WEIGHTS).write_bytes(bytes(4 * LIMIT))
    (bomb / CONFIG).write_text("{}")
    async with sqlite_place.running(max_upload_bytes=LIMIT) as registry:
        for filename, packed in (("a.tar.gz", tarred(bomb)), ("a.zip", zipped(bomb))):
            answer = await registry.http.post(ADAPTERS, data={"name": "a"}, files={"file": (filename, packed)})
            error_of(answer, 413)
        assert sqlite_place.num_staged == 0


async def _odd_uploads(registry: Registry, folder: Path) -> AsyncIterator[tuple[httpx.Response, str | None]]:
    """Uploads that are wrong in one way each, and the field that the refusal must name."""
    both = [("files", (file, (folder / file).read_bytes())) for file in (CONFIG, WEIGHTS)]
    post = registry.http.post
    yield await post(ADAPTERS, data={}, files=both), "name"
    yield await post(ADAPTERS, data={"name": "a b"}, files=both), "name"
    yield await post(ADAPTERS, data={"name": "a", "activate": "maybe"}, files=both), "activate"
    yield await post(ADAPTERS, data={"name": "a", "colour": "red"}, files=both), "colour"
    yield await post(ADAPTERS, data={"name": "a"}, files=[*both, both[0]]), "files"
    yield await post(ADAPTERS, data={"name": "a"}, files=[("adapter", both[0][1])]), "adapter"
    yield await post(ADAPTERS, data={"name": "a"}, files=[*both, ("files", ("a.zip", b"PK"))]), "files"
    yield await post(ADAPTERS, data={"name": "a"}, files={"file": ("a.zip", b"PK")}), "files"
    yield await post(ADAPTERS, data={"name": "a"}), None
    yield await post(ADAPTERS, json={"name": "a"}), "source"
    yield await post(ADAPTERS, content=b"x", headers={"Content-Type": "multipart/form-data"}), None
    yield await post(ADAPTERS, data={"name": "a"}, files=both[:1]), None
    yield await post(ADAPTERS, data={"name": "a"}, files=[("files", ("adapter_model.bin", b"\x80\x02."))]), None


@alive
async def test_an_odd_upload_is_refused_in_words_and_leaves_nothing(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        async for response, field in _odd_uploads(registry, folders[0]):
            assert error_of(response, 400)["param"] == field
        assert (await registry.http.get(ADAPTERS)).json()["data"] == []
        assert sqlite_place.num_staged == 0


@alive
async def test_the_base_cannot_be_replaced(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        assert error_of(await registry.upload(BASE, folders[0]), 409)["param"] == "name"


@alive
async def test_what_is_not_there_is_not_found(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        for method, path in (("GET", "a"), ("DELETE", "a"), ("POST", "a/activate"), ("POST", "a/deactivate")):
            error = error_of(await registry.http.request(method, f"{ADAPTERS}/{path}"), 404)
            assert (error["code"], error["param"]) == ("adapter_not_found", "name")
