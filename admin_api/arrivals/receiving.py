"""One part of a file out of a request body, and the files that parts make up. Knows no row."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ...core.errors import InvalidRequest, TooLarge
from ...lora.parts import Parts
from ...lora.store import AdapterStore
from ...lora.streams import reading
from .. import archives

PIECE = 1 << 20
DIGEST = re.compile(r"(?:.*,\s*)?sha-256=:([A-Za-z0-9+/]{43}=):(?:\s*,.*)?")
RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(?:\d{1,18}|\*)")
HOW = "send Content-Digest: sha-256=:BASE64: of the part (RFC 9530)"


def offset_in(headers: Mapping[str, str]) -> int:
    """Where a part belongs; raises InvalidRequest."""
    text, ranged = headers.get("upload-offset", ""), RANGE.fullmatch(headers.get("content-range", ""))
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    if not text and ranged:
        return int(ranged[1])
    raise InvalidRequest("say where the part belongs: Upload-Offset: N, or Content-Range: bytes N-M/SIZE")


def digest_in(headers: Mapping[str, str]) -> bytes:
    """The SHA-256 that a part must have; raises InvalidRequest."""
    match = DIGEST.fullmatch(headers.get("content-digest", ""))
    try:
        return base64.b64decode(match[1], validate=True) if match else _missing()
    except binascii.Error:
        return _missing()


async def receive(pieces: AsyncIterator[bytes], file: Path, digest: bytes, room: int) -> int:
    """Write a part to `file`, durable, and return its size. Raises TooLarge over `room`, InvalidRequest when its bytes
    are not those of `digest`; nobody has seen them then."""
    seen, size = hashlib.sha256(), 0
    with file.open("wb") as out:
        async for piece in _gathered(pieces):
            size += len(piece)
            if size > room:
                raise TooLarge(f"the part is longer than the {room} bytes that are still to come")
            await asyncio.to_thread(_take, piece, seen, out)
        await asyncio.to_thread(_sync, out)
    if not hmac.compare_digest(seen.digest(), digest):
        raise InvalidRequest("the part's bytes are not those of its Content-Digest; send it again", code="bad_checksum")
    if not size:
        raise InvalidRequest("the part is empty")
    return size


@asynccontextmanager
async def scratch_of(store: AdapterStore) -> AsyncIterator[Path]:
    """An empty folder for a while; large files go in a worker thread."""
    with ExitStack() as stack:
        folder = await asyncio.to_thread(stack.enter_context, store.scratch())
        try:
            yield folder
        finally:
            await asyncio.to_thread(stack.close)


@contextmanager
def joined(
    parts: Parts, upload: str, files: Mapping[str, Mapping[str, Any]], folder: Path, max_bytes: int
) -> Iterator[Mapping[str, BinaryIO | Path]]:
    """The files of an upload by name, or those in the archive that it is. Reading to the end checks their digests."""
    streams = {
        name: reading(_checked(_pieces(parts, upload, state["parts"]), state["sha256"], name))
        for name, state in files.items()
    }
    archive = next((name for name in streams if name.lower().endswith(archives.SUFFIXES)), None)
    if archive is None:
        yield streams
        return
    with (folder / "archive").open("w+b") as whole:  # archives are not read from front to end
        shutil.copyfileobj(streams[archive], whole, PIECE)
        whole.seek(0)
        with archives.opened(archive, whole, max_bytes) as members:
            yield members


def check_sha256(file: Path, sha256: str) -> None:
    """Raises InvalidRequest when a fetched file is not what was asked for."""
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if not hmac.compare_digest(found, sha256):
        raise _other(file.name, found, sha256)


def _missing() -> bytes:
    raise InvalidRequest(f"a part needs a checksum: {HOW}", code="checksum_missing")


async def _gathered(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    held = bytearray()
    async for piece in pieces:
        held += piece
        if len(held) >= PIECE:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def _take(piece: bytes, seen: hashlib._Hash, out: BinaryIO) -> None:
    seen.update(piece)
    out.write(piece)


def _sync(out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())


def _pieces(parts: Parts, upload: str, names: Sequence[str]) -> Iterator[bytes]:
    for name in names:
        with parts.open(upload, name) as part:
            while piece := part.read(PIECE):
                yield piece


def _checked(pieces: Iterator[bytes], sha256: str, name: str) -> Iterator[bytes]:
    seen = hashlib.sha256()
    for piece in pieces:
        seen.update(piece)
        yield piece
    if not hmac.compare_digest(seen.hexdigest(), sha256):
        raise _other(name, seen.hexdigest(), sha256)


def _other(name: str, found: str, sha256: str) -> InvalidRequest:
    return InvalidRequest(f"{name} has the SHA-256 {found}, not {sha256}", param="sha256", code="bad_checksum")
