"""Adapter files on disk under the digest of their content: there completely, or not at all.

    <root>/adapters/<digest>/    adapter_config.json, adapter_model.safetensors, README.md where one came along
    <root>/staging/              uploads under way and things on their way out; swept at start

An upload is written and synced in staging and becomes visible by one rename; a drop begins with one. So the process may
be killed at any moment. A store has one owner process.

The digest is the SHA-256 of: the line "aril adapter 1", the length (8 bytes, big endian) and the bytes of
`AdapterConfig.canonical()`, and the bytes of adapter_model.safetensors. Fields that do not change the numbers (dropout,
PEFT's version, the base's name) and README.md do not count.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from ..core.errors import InvalidAdapter, NotFound, TooLarge
from .config import CONFIG_FILE, PICKLED_FILE, WEIGHTS_FILE, AdapterConfig

KEPT = (CONFIG_FILE, WEIGHTS_FILE, "README.md")
DIGEST = re.compile(r"[0-9a-f]{64}")
PLAIN_NAME = re.compile(r"[^/\\\0]+")
PREAMBLE = b"aril adapter 1\n"
PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Staged:
    """An upload on disk that nothing names yet. `notes` say what was left out."""

    folder: Path
    notes: tuple[str, ...] = ()

    def discard(self) -> None:
        """Remove it."""
        shutil.rmtree(self.folder, ignore_errors=True)


class AdapterStore:
    """The folder of all revisions. Its methods may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self._adapters = root / "adapters"
        self._staging = root / "staging"
        for folder in (self._adapters, self._staging):
            folder.mkdir(parents=True, exist_ok=True)

    def stage(self, files: Mapping[str, BinaryIO | Path | bytes], max_bytes: int) -> Staged:
        """Write an upload to disk. Files that serving has no use for are left out, and named in the notes.

        Raises TooLarge over `max_bytes` in all, InvalidAdapter for a name that is a path and for pickled weights.
        """
        _check_names(files)
        staged = Staged(
            Path(tempfile.mkdtemp(dir=self._staging)),
            tuple(
                f"{name} was left out: not needed to serve the adapter" for name in sorted(files) if name not in KEPT
            ),
        )
        try:
            room = max_bytes
            for name in KEPT:
                if name in files:
                    room -= _write(staged.folder / name, files[name], room, max_bytes)
            _sync(staged.folder)
        except BaseException:
            staged.discard()
            raise
        return staged

    def commit(self, staged: Staged) -> str:
        """Keep an upload for good and return its digest; the same content again changes nothing."""
        digest = content_digest(staged.folder)
        home = self._adapters / digest
        try:
            staged.folder.rename(home)
        except OSError:
            if not home.is_dir():
                raise
            staged.discard()  # it is there already
        _sync(self._adapters)
        return digest

    def path(self, digest: str) -> Path:
        """The folder of a revision; raises NotFound."""
        home = self._adapters / digest
        if not DIGEST.fullmatch(digest) or not home.is_dir():
            raise NotFound(f"no adapter bytes with digest {digest!r} in {self._adapters}")
        return home

    def drop(self, digest: str) -> None:
        """Remove a revision; one that is not there is fine."""
        grave = Path(tempfile.mkdtemp(dir=self._staging))
        with suppress(NotFound, FileNotFoundError):
            self.path(digest).rename(grave / digest)
            _sync(self._adapters)
        shutil.rmtree(grave, ignore_errors=True)

    def digests(self) -> list[str]:
        """Every revision that is there, sorted."""
        return sorted(p.name for p in self._adapters.iterdir() if DIGEST.fullmatch(p.name))

    def sweep(self) -> int:
        """Remove what an earlier process left half done, and say how many; call it before the first `stage`."""
        left = list(self._staging.iterdir())
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
        return len(left)


def content_digest(folder: Path) -> str:
    """The identity of an adapter's content; raises InvalidAdapter when its configuration describes no plain LoRA."""
    problems: list[str] = []
    config = AdapterConfig.from_json(_bytes_of(folder / CONFIG_FILE), problems)
    if config is None or problems:
        raise InvalidAdapter(f"this adapter cannot be served: {'; '.join(problems)}", problems=problems)
    canonical = config.canonical()
    digest = hashlib.sha256(PREAMBLE + len(canonical).to_bytes(8, "big") + canonical)
    with _opened(folder / WEIGHTS_FILE) as weights:
        while piece := weights.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _check_names(files: Mapping[str, object]) -> None:
    problems = [
        f"file name {name!r} is not a plain name"
        for name in files
        if not PLAIN_NAME.fullmatch(name) or name in (".", "..")
    ]
    if PICKLED_FILE in files and WEIGHTS_FILE not in files:
        problems.append(f"{PICKLED_FILE} is a pickle, which can run code; save the adapter as {WEIGHTS_FILE}")
    if problems:
        raise InvalidAdapter("; ".join(problems), problems=problems)


def _write(path: Path, source: BinaryIO | Path | bytes, room: int, max_bytes: int) -> int:
    size = 0
    with _opened(source) as incoming, path.open("wb") as out:
        while piece := incoming.read(PIECE):
            size += len(piece)
            if size > room:
                raise TooLarge(f"the adapter's files are over the limit of {max_bytes} bytes", param=path.name)
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    return size


@contextmanager
def _opened(source: BinaryIO | Path | bytes) -> Iterator[BinaryIO]:
    if isinstance(source, bytes):
        yield BytesIO(source)
    elif not isinstance(source, Path):
        yield source
    elif not source.is_file():
        raise InvalidAdapter(f"{source.name} is missing", problems=[f"{source.name} is missing"])
    else:
        with source.open("rb") as file:
            yield file


def _bytes_of(path: Path) -> bytes:
    with _opened(path) as file:
        return file.read()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
