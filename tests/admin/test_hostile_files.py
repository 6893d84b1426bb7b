"""Files made to do harm, sent as a client would: each is refused in words, runs nothing, and leaves nothing behind."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from builders.parts import UPLOADS, Sender, files_of
from builders.registry import ADAPTERS, Place, Registry, alive

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LIMIT = 1 << 20
GOOD = b'{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}'
Pack = Callable[[Mapping[str, bytes]], bytes]


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._mark), "w")


async def sent(registry: Registry, files: Mapping[str, bytes], name: str = "pirate") -> httpx.Response:
    """The answer to a plain upload, once the gate has decided."""
    parts = [("files", (file, data)) for file, data in files.items()]
    return await registry.http.post(ADAPTERS, data={"name": name, "wait": "30"}, files=parts)


async def is_refused(place: Place, registry: Registry, files: Mapping[str, bytes]) -> str:
    """What a refusal said; there is nothing left of the upload but, where the gate refused it, a report."""
    answer = await sent(registry, files)
    body = answer.json()
    assert (answer.status_code, body.get("state")) in ((202, "rejected"), (400, None), (413, None)), answer.text
    assert await registry.models() == ["tiny"]
    assert (place.num_staged, registry.store.parts.uploads()) == (0, [])
    return json.dumps(body)


def zipped(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def tarred(files: Mapping[str, bytes]) -> bytes:
    return tar_of(*((tarfile.TarInfo(name), data) for name, data in files.items()))


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


packs = pytest.mark.parametrize(("file", "pack"), [("a.zip", zipped), ("a.tar.gz", tarred)])


@packs
@pytest.mark.parametrize(
    "path",
    ["../adapter_config.json", "/tmp/adapter_config.json", "..\\adapter_config.json", "a/../../adapter_config.json",
     "C:\\adapter_config.json", "a/b/adapter_config.json"],
)  # fmt: skip
@alive
async def test_a_path_that_leaves_the_archive_is_refused(sqlite_place: Place, file: str, pack: Pack, path: str) -> None:
    async with sqlite_place.running() as registry:
        said = await is_refused(sqlite_place, registry, {file: pack({path: GOOD, WEIGHTS: b"x"})})
        assert "archive" in said


@pytest.mark.parametrize("path", ["．．／adapter_config.json", "adapter_cоnfig.json", "adapter_config.json\u200b"])
@packs
@alive
async def test_a_look_alike_of_a_file_is_not_that_file(sqlite_place: Place, file: str, pack: Pack, path: str) -> None:
    async with sqlite_place.running() as registry:
        said = await is_refused(sqlite_place, registry, {file: pack({path: GOOD, WEIGHTS: b"x"})})
        assert f"{CONFIG} is missing" in said


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE]
)
@alive
async def test_links_and_devices_are_refused(sqlite_place: Place, kind: bytes) -> None:
    link = tarfile.TarInfo(WEIGHTS)
    link.type, link.linkname, link.devmajor, link.devminor = kind, "/etc/passwd", 1, 5
    async with sqlite_place.running() as registry:
        said = await is_refused(sqlite_place, registry, {"a.tgz": tar_of((tarfile.TarInfo(CONFIG), GOOD), (link, b""))})
        assert "not a plain file" in said


@packs
@alive
async def test_a_bomb_is_too_large_however_small_it_came(sqlite_place: Place, file: str, pack: Pack) -> None:
    bomb = pack({CONFIG: GOOD, WEIGHTS: bytes(256 * LIMIT)})
    assert len(bomb) < LIMIT
    async with sqlite_place.running(max_upload_bytes=LIMIT) as registry:
        assert str(LIMIT) in await is_refused(sqlite_place, registry, {file: bomb})


@alive
async def test_a_bomb_that_comes_in_parts_is_too_large(sqlite_place: Place) -> None:
    async with sqlite_place.running(max_upload_bytes=LIMIT) as registry:
        sender = Sender(registry.http, {"a.tar.gz": tarred({CONFIG: GOOD, WEIGHTS: bytes(256 * LIMIT)})})
        await sender.announce()
        await sender.send()
        assert (await sender.complete()).status_code == 413
        assert (sqlite_place.num_staged, registry.store.parts.uploads()) == (0, [])


@alive
async def test_members_that_share_their_bytes_are_refused(sqlite_place: Place) -> None:
    packed = bytearray(zipped({WEIGHTS: bytes(LIMIT // 2), "README.md": b""}))
    second = packed.rindex(b"PK\x01\x02")
    packed[second + 42 : second + 46] = struct.pack("<L", 0)  # the README is where the weights are
    async with sqlite_place.running(max_upload_bytes=LIMIT) as registry:
        await is_refused(sqlite_place, registry, {"a.zip": bytes(packed)})


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, "adapter_model.bin", "adapter_model.pt", "README.md"])
@alive
async def test_a_pickle_runs_under_no_name(sqlite_place: Place, folders: list[Path], tmp_path: Path, name: str) -> None:
    mark = tmp_path / "it-ran"
    files = {**files_of(folders[0]), name: pickle.dumps(Trap(mark))}
    if name not in (CONFIG, "README.md"):
        del files[WEIGHTS]
        files[name] = pickle.dumps(Trap(mark))
    async with sqlite_place.running() as registry:
        if name == "README.md":
            assert (await sent(registry, files)).json()["state"] == "ready"  # nobody reads it
        else:
            await is_refused(sqlite_place, registry, files)
    assert not mark.exists()


@alive
async def test_a_pickle_in_an_archive_does_not_run_either(
    sqlite_place: Place, folders: list[Path], tmp_path: Path
) -> None:
    mark = tmp_path / "it-ran"
    inner = zipped({"archive/data.pkl": pickle.dumps(Trap(mark))})  # as torch.save writes
    async with sqlite_place.running() as registry:
        for pack, file in ((zipped, "a.zip"), (tarred, "a.tgz")):
            await is_refused(sqlite_place, registry, {file: pack({CONFIG: GOOD, WEIGHTS: inner})})
    assert not mark.exists()


HEADERS = {
    "longer than the file": struct.pack("<Q", 1 << 20) + b"{}",
    "longer than memory": struct.pack("<Q", (1 << 63) - 1) + b"{}",
    "all ones": b"\xff" * 64,
    "empty": struct.pack("<Q", 0),
    "no file": b"",
    "half a length": b"\x08\0\0",
    "no JSON": struct.pack("<Q", 8) + b"\xff" * 8,
    "deep": struct.pack("<Q", 200_000) + b"[" * 200_000,
    "offsets outside": json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 40]}}).encode(),
    "offsets backwards": json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}}).encode(),
    "negative shape": json.dumps({"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}).encode(),
    "endless shape": json.dumps({"a": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 16]}}).encode(),
    "twice": b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},'
    b'"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
@alive
async def test_an_absurd_header_of_weights_is_refused(sqlite_place: Place, header: bytes) -> None:
    whole = struct.pack("<Q", len(header)) + header + bytes(16) if header.startswith(b"{") else header
    async with sqlite_place.running() as registry:
        await is_refused(sqlite_place, registry, {CONFIG: GOOD, WEIGHTS: whole})


@alive
async def test_keys_that_stand_twice_are_refused_wherever_json_is_read(
    sqlite_place: Place, folders: list[Path]
) -> None:
    twice = GOOD[:-1] + b', "r": 400000}'
    async with sqlite_place.running() as registry:
        assert "'r' is there twice" in await is_refused(
            sqlite_place, registry, {CONFIG: twice, WEIGHTS: files_of(folders[0])[WEIGHTS]}
        )
        for url in (ADAPTERS, UPLOADS):
            body = b'{"name": "a", "name": "b", "source": "file:///x", "files": {}}'
            answer = await registry.http.post(url, content=body, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "duplicate_field")


NAMES = [
    "../pirate", "a/../b", "pirate\0", "pirate\n", "pi\x1b[2Jrate", "ｐirate", "рirate", "pirate\u200b", "\u202eetarip",
    "pirate ", "a/b/c", "%2e%2e", "pirate@1", "pirate:1", "．．／pirate", "ﬁ", "Ⅷ", "ⅰ",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@alive
async def test_names_with_paths_controls_or_look_alikes_are_refused_by_every_way_in(
    sqlite_place: Place, folders: list[Path], name: str
) -> None:
    async with sqlite_place.running(adapter_roots=(folders[0].parent,)) as registry:
        answers = [
            await sent(registry, files_of(folders[0]), name),
            await registry.http.post(ADAPTERS, json={"name": name, "source": folders[0].as_uri()}),
            await Sender(registry.http, {CONFIG: GOOD}).announce(name),
        ]
        for answer in answers:
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "name")
        assert (await registry.http.get(UPLOADS)).json()["data"] == []


@alive
async def test_ten_thousand_files_are_refused_before_they_are_all_read(sqlite_place: Place) -> None:
    crowd = {f"file{at}": b"x" for at in range(10_000)}
    async with sqlite_place.running() as registry:
        for files in (crowd, {"a.zip": zipped(crowd)}, {"a.tgz": tarred(crowd)}):
            await is_refused(sqlite_place, registry, files)
        announced = await Sender(registry.http, crowd).announce()
        assert announced.status_code in (400, 413)
