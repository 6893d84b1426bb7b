"""Adapters in one archive: .zip, .tar.gz or .tgz. Members are read as streams; nothing is ever unpacked to a path.

Refuses links, devices, encrypted members, paths that leave the archive, and more bytes than allowed, whatever the
archive claims about itself. Which of the files an adapter needs is the store's to say.
"""

from __future__ import annotations

import gzip
import io
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import BinaryIO

from ..core.errors import InvalidRequest, TooLarge

SUFFIXES = (".zip", ".tar.gz", ".tgz")
FINDER = ("__MACOSX", "._")  # what macOS puts into archives for itself
MAX_MEMBERS = 16
MAX_DIRECTORY = 1 << 16  # bytes of a zip's own list of members
MAX_READ = 8 << 20  # one read; a tar header that wants more is no header
TAR_OVERHEAD = 1 << 20  # headers and padding beside the files
BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError, struct.error)


@contextmanager
def opened(filename: str, file: BinaryIO, max_bytes: int) -> Iterator[Mapping[str, BinaryIO]]:
    """The files in an archive, by name, as streams. Raises InvalidRequest, and TooLarge beyond `max_bytes`."""
    read = _zip_members if filename.lower().endswith(".zip") else _tar_members
    try:
        with read(file, max_bytes) as members:
            yield members
    except BROKEN as error:
        raise InvalidRequest(f"{filename!r} is not a sound archive: {error}", param="files") from error


@contextmanager
def _zip_members(file: BinaryIO, max_bytes: int) -> Iterator[Mapping[str, BinaryIO]]:
    _check_directory(file)
    with zipfile.ZipFile(file) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        for member in members:
            _refuse(member.filename, _zip_problem(member))
        chosen = _by_name([member.filename for member in members])
        if sum(archive.getinfo(path).file_size for path in chosen.values()) > max_bytes:
            raise _too_large(max_bytes)
        yield {name: archive.open(path) for name, path in chosen.items()}  # type: ignore[misc]


@contextmanager
def _tar_members(file: BinaryIO, max_bytes: int) -> Iterator[Mapping[str, BinaryIO]]:
    bounded = _Bounded(gzip.GzipFile(fileobj=file, mode="rb"), max_bytes + TAR_OVERHEAD)
    with tarfile.open(fileobj=bounded, mode="r:") as archive:
        members: dict[str, tarfile.TarInfo] = {}
        paths: list[str] = []
        for at, member in enumerate(archive):
            if at >= MAX_MEMBERS:
                raise InvalidRequest(f"an archive may hold {MAX_MEMBERS} members", param="files")
            if not member.isdir():
                _refuse(member.name, _tar_problem(member))
                paths.append(member.name)
                members[member.name] = member
        streams = {name: archive.extractfile(members[path]) for name, path in _by_name(paths).items()}
        yield {name: stream for name, stream in streams.items() if stream is not None}  # type: ignore[misc]


def _by_name(paths: list[str]) -> dict[str, str]:
    """File name -> path in the archive. The files may stand in one folder, nowhere deeper."""
    if len(paths) > MAX_MEMBERS:
        raise InvalidRequest(f"an archive may hold {MAX_MEMBERS} members", param="files")
    found: dict[str, str] = {}
    folders = set()
    for path in paths:
        parts = PurePosixPath(path).parts
        _refuse(path, _path_problem(path, parts))
        if parts[0] == FINDER[0] or parts[-1].startswith(FINDER[1]):
            continue
        _refuse(path, "is there twice" if parts[-1] in found else None)
        folders.add(parts[:-1])
        found[parts[-1]] = path
    if len(folders) > 1:
        raise InvalidRequest("the files of an archive must stand side by side", param="files")
    return found


def _path_problem(path: str, parts: tuple[str, ...]) -> str | None:
    if path.startswith("/") or "\\" in path or ".." in parts or not parts:
        return "has a path that leaves the archive"
    if len(parts) > 2:
        return "is nested too deep; the files stand at the top or in one folder"
    return None


def _zip_problem(member: zipfile.ZipInfo) -> str | None:
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        return "is not a plain file"
    if member.flag_bits & 1:
        return "is encrypted"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is compressed by a method other than deflate"
    return None


def _tar_problem(member: tarfile.TarInfo) -> str | None:
    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.sparse is None
    return None if plain else "is not a plain file"


def _refuse(path: str, problem: str | None) -> None:
    if problem is not None:
        raise InvalidRequest(f"the archive's member {path[:200]!r} {problem}", param="files")


def _check_directory(file: BinaryIO) -> None:
    """Refuse a list of members so long that reading it would fill the memory; zipfile reads it whole."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - (1 << 16) - 22))
    tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        raise InvalidRequest("the .zip has no list of members; was it cut short?", param="files")
    (directory,) = struct.unpack_from("<L", tail, at + 12)
    if directory > MAX_DIRECTORY or b"PK\x06\x07" in tail[max(0, at - 20) : at]:
        raise InvalidRequest("the .zip has far too many members for an adapter", param="files")


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"the archive unpacks to more than the {max_bytes} bytes that an adapter may have", param="files")


class _Bounded(io.RawIOBase):
    """A decompressed stream that ends in a refusal rather than go past `limit` or fill the memory."""

    def __init__(self, raw: gzip.GzipFile, limit: int) -> None:
        self._raw = raw
        self._limit = limit

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_READ:
            raise InvalidRequest("the archive has an over-long header", param="files")
        data = self._raw.read(size)
        self._check(self._raw.tell())
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET
        self._check(offset)
        return self._raw.seek(offset)

    def tell(self) -> int:
        return self._raw.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def _check(self, position: int) -> None:
        if position > self._limit:
            raise _too_large(self._limit - TAR_OVERHEAD)
