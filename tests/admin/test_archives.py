"""Archives are read as streams, within bounds, and refused whenever they hold anything but an adapter."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping

import pytest
from aril.admin_api.archives import opened
from aril.core.errors import InvalidRequest, TooLarge

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FILES = {CONFIG: b'{"r": 8}', WEIGHTS: b"weights" * 1000}
LIMIT = 1 << 20
Pack = Callable[[Mapping[str, bytes]], tuple[str, io.BytesIO]]


def zipped(files: Mapping[str, bytes]) -> tuple[str, io.BytesIO]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return "adapter.zip", packed


def tarred(files: Mapping[str, bytes]) -> tuple[str, io.BytesIO]:
    return tar_of(*((member(name, data), data) for name, data in files.items()))


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> tuple[str, io.BytesIO]:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    packed.seek(0)
    return "adapter.tar.gz", packed


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, target
    return info


def contents(archive: tuple[str, io.BytesIO], limit: int = LIMIT) -> dict[str, bytes]:
    with opened(*archive, limit) as files:
        return {name: file.read() for name, file in files.items()}


both = pytest.mark.parametrize("pack", [zipped, tarred])


@both
def test_the_two_files_come_out_as_they_went_in(pack: Pack) -> None:
    assert contents(pack(FILES)) == FILES


@both
def test_the_files_may_stand_in_one_folder_beside_a_readme(pack: Pack) -> None:
    files = {**FILES, "README.md": b"hello"}
    assert contents(pack({f"./pirate/{name}": data for name, data in files.items()})) == files


@both
def test_what_macos_adds_for_itself_is_passed_over(pack: Pack) -> None:
    assert contents(pack({**FILES, f"__MACOSX/._{CONFIG}": b"x", f"._{WEIGHTS}": b"x"})) == FILES


@both
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/etc/adapter_config.json", "leaves the archive"),
        ("../adapter_config.json", "leaves the archive"),
        ("a/../adapter_config.json", "leaves the archive"),
        ("a\\adapter_config.json", "leaves the archive"),
        ("a/b/adapter_config.json", "nested too deep"),
        ("other/adapter_config.json", "there twice"),
        ("other/README.md", "side by side"),
    ],
)
def test_a_member_out_of_place_is_refused_by_name(pack: Pack, path: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        contents(pack({**FILES, path: b"x"}))


@both
def test_an_archive_that_unpacks_to_more_than_the_limit_is_too_large(pack: Pack) -> None:
    with pytest.raises(TooLarge, match=f"{LIMIT} bytes"):
        contents(pack({CONFIG: b"{}", WEIGHTS: bytes(4 * LIMIT)}))


@both
def test_a_crowd_of_members_is_refused(pack: Pack) -> None:
    with pytest.raises(InvalidRequest, match="members"):
        contents(pack({f"file{at}": b"" for at in range(2000)}))


@both
def test_an_archive_cut_short_is_refused(pack: Pack) -> None:
    name, packed = pack(FILES)
    with pytest.raises(InvalidRequest):
        contents((name, io.BytesIO(packed.getvalue()[:-40])))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_a_link_or_device_in_a_tar_is_refused(kind: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a plain file"):
        contents(tar_of((member(WEIGHTS, kind=kind, target="/etc/passwd"), b"")))


def test_a_link_in_a_zip_is_refused() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        link = zipfile.ZipInfo(WEIGHTS)
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(InvalidRequest, match="not a plain file"):
        contents(("adapter.zip", packed))


def test_a_zip_compressed_otherwise_is_refused() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr(CONFIG, "{}")
    with pytest.raises(InvalidRequest, match="other than deflate"):
        contents(("adapter.zip", packed))


def test_a_zip_that_lies_about_its_sizes_is_refused() -> None:
    name, packed = zipped({CONFIG: b"{}", WEIGHTS: bytes(4 * LIMIT)})
    lying = packed.getvalue().replace(struct.pack("<L", 4 * LIMIT), struct.pack("<L", 10))
    with pytest.raises(InvalidRequest, match="not a sound archive"):
        contents((name, io.BytesIO(lying)))


def test_a_tar_header_that_would_fill_the_memory_is_refused() -> None:
    info = member(WEIGHTS, b"x")
    info.pax_headers = {"comment": "x" * (16 << 20)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(b"x"))
    packed.seek(0)
    with pytest.raises(InvalidRequest, match="over-long header"):
        contents(("adapter.tgz", packed), limit=1 << 30)


@pytest.mark.parametrize("name", ["adapter.zip", "adapter.tar.gz"])
def test_bytes_that_are_no_archive_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"archive|list of members"):
        contents((name, io.BytesIO(b"not an archive at all" * 100)))
