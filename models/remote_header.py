"""The first bytes of a weight file on the hub: a local file of the same length that holds its header, and no numbers.

The rest is a hole, which takes no room on disk and reads as zeros; only headers may be read from such a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from huggingface_hub import hf_hub_url
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from ..core.errors import Unsupported
from .safetensors_header import LONGEST, SIZE

FIRST = 1 << 20  # bytes that are asked for at once: most headers of safetensors are shorter
GGUF_STEP = 1 << 24  # a GGUF's header holds its vocabulary: 2 to 10 MB


class Bytes(Protocol):
    """A file elsewhere."""

    def read(self, start: int, size: int) -> bytes:
        """`size` bytes from `start` on, or fewer where it ends."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a hub repository at one commit."""

    repo: str
    name: str
    commit: str

    def read(self, start: int, size: int) -> bytes:
        """`size` bytes from `start` on, or fewer where it ends."""
        url = hf_hub_url(self.repo, self.name, revision=self.commit)
        headers = build_hf_headers() | {"Range": f"bytes={start}-{start + size - 1}"}
        found = bytearray()
        with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
            hf_raise_for_status(response)
            skipped = 0 if response.status_code == 206 else start  # a server may send all of it
            for piece in response.iter_bytes():
                found += piece
                if len(found) >= skipped + size:
                    break
        return bytes(found[skipped : skipped + size])


def write_header(path: Path, size: int, remote: Bytes) -> None:
    """Make `path`, `size` bytes long, with the header of `remote`. Raises Unsupported for a kind that has none."""
    if path.suffix == ".safetensors":
        _write_safetensors(path, size, remote)
    elif path.suffix == ".gguf":
        _write_gguf(path, size, remote)
    else:
        raise Unsupported(
            f"{path.name} is a pickle, which lists its tensors only as a whole: download the model and name its folder",
            param="model",
        )


def _write_safetensors(path: Path, size: int, remote: Bytes) -> None:
    known = remote.read(0, FIRST)
    if len(known) >= SIZE.size:
        (length,) = SIZE.unpack_from(known)
        missing = SIZE.size + min(length, LONGEST) - len(known)
        if missing > 0:
            known += remote.read(len(known), missing)
    _write(path, size, known)


def _write_gguf(path: Path, size: int, remote: Bytes) -> None:
    from .gguf_file import GgufFile

    known = b""
    while len(known) < size:
        piece = remote.read(len(known), GGUF_STEP)
        known += piece
        _write(path, size, known)
        try:
            GgufFile(path)
            return
        except Unsupported:  # its header goes on, or it is broken; the end of the file tells which
            if not piece:
                return


def _write(path: Path, size: int, known: bytes) -> None:
    with path.open("wb") as file:
        file.write(known[:size])
        file.truncate(size)
