"""Adapter files on disk under the digest of their content: there completely, or not at all.

    <root>/adapters/<digest>/    adapter_config.json, adapter_model.safetensors, README.md where one came along
    <root>/uploads/              pieces of uploads that have not come whole (parts.py)
    <root>/registry              the registry whose store this is
    <root>/id                    which store this is, wherever it is moved or mounted
    <root>/staging/              what is under way or on its way out, for each process (staging.py)

An upload is written and synced in staging and becomes visible by one rename; a drop begins with one. So a process may
be killed at any moment, and several may share a store; the folder's file system must know flock, as NFS 4 does.

The digest is the SHA-256 of: the line "aril adapter 1", the length (8 bytes, big endian) and the bytes of
`AdapterConfig.canonical()`, and the bytes of adapter_model.safetensors. Fields that do not change the numbers (dropout,
PEFT's version, the base's name) and README.md do not count.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from ..core.errors import Conflict, InvalidAdapter, NotFound, TooLarge
from .config import CONFIG_FILE, WEIGHTS_FILE, AdapterConfig
from .parts import PartFolder, Parts
from .staging import Staging, sync
from .strangers import instead_of_weights

CARD = "README.md"
KEPT = (CONFIG_FILE, WEIGHTS_FILE, CARD)
DIGEST = re.compile(r"[0-9a-f]{64}")
PLAIN_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]+")
OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY)
MARK = "registry"  # the file that says whose store this is
ID = "id"  # the file that says which one it is
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
        self._mark = root / MARK
        self._id = root / ID
        self._adapters = root / "adapters"
        self._adapters.mkdir(parents=True, exist_ok=True)
        self._staging = Staging(root / "staging")
        self.parts: Parts = PartFolder(root / "uploads")

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self._id.parent.absolute()} on {socket.gethostname()}"

    def identity(self) -> str:
        """What tells this store from every other; it moves along with the folder."""
        if not self._id.exists():
            self._write_once(self._id, secrets.token_hex(16))
        return self._id.read_text().strip()

    def claim(self, registry: str | None) -> None:
        """Be the store of that registry from now on, None: of one that has no name yet. Raises Conflict when it is
        another's already: what the one does not know, the other may need."""
        owner = self._owner()
        if owner is None and registry is not None:
            self._mark_as(registry)
            owner = self._owner()
        if owner not in (None, registry):
            raise Conflict(
                f"the adapter store is that of another registry: {self._marked_at} says so, and a registry removes "
                "what it does not know; choose another with --store, or remove that mark if those adapters may go"
            )

    def stage(self, files: Mapping[str, BinaryIO | Path | bytes], max_bytes: int) -> Staged:
        """Write an upload to disk. Files that serving has no use for are left out, and named in the notes.

        Raises TooLarge over `max_bytes` in all, InvalidAdapter for a name that is a path and for pickled weights.
        """
        _check_names(files)
        staged = Staged(
            self._staging.new_folder(),
            tuple(
                f"{name} was left out: not needed to serve the adapter" for name in sorted(files) if name not in KEPT
            ),
        )
        try:
            room = max_bytes
            for name in KEPT:
                if name in files:
                    room -= _write(staged.folder / name, files[name], room, max_bytes)
            sync(staged.folder)
        except BaseException:
            staged.discard()
            raise
        return staged

    def commit(self, staged: Staged) -> str:
        """Keep an upload for good and return its digest; the same content again changes nothing."""
        digest = content_digest(staged.folder)
        home = self._adapters / digest
        while not _moved(staged.folder, home) and not home.is_dir():
            pass  # it was there, and has just been dropped
        sync(self._adapters)
        staged.discard()  # what it still is if the content was there
        return digest

    def path(self, digest: str) -> Path:
        """The folder of a revision; raises NotFound."""
        home = self._adapters / digest
        if not DIGEST.fullmatch(digest) or not home.is_dir():
            raise NotFound(f"no adapter bytes with digest {digest!r} in {self._adapters}")
        return home

    def drop(self, digest: str, *, needed: Callable[[], bool] = lambda: False) -> bool:
        """Remove a revision unless it is `needed`, and say whether.

        That is asked once more when nobody can find the revision any longer. Whoever commits the same content and then
        says that it is needed has to keep drops away meanwhile.
        """
        if not DIGEST.fullmatch(digest) or needed():
            return False
        grave, kept = self._staging.grave(digest), True
        try:
            (self._adapters / digest).rename(grave)
            sync(self._adapters)
            kept = needed()
        except FileNotFoundError:  # there is none, or another process was quicker
            return False
        finally:
            if kept and grave.exists():
                self._put_back(grave)
            self._staging.bury(grave)
        return not kept

    def digests(self) -> list[str]:
        """Every revision that is there, sorted."""
        return sorted(p.name for p in self._adapters.iterdir() if DIGEST.fullmatch(p.name))

    def scratch(self) -> AbstractContextManager[Path]:
        """An empty folder beside the revisions, for a while."""
        return self._staging.scratch()

    def sweep(self) -> int:
        """Remove what dead processes left half done, and say how many things that were."""
        return self._staging.sweep(self._put_back)

    @property
    def _marked_at(self) -> str:
        return str(self._mark)

    def _owner(self) -> str | None:
        return self._mark.read_text().strip() if self._mark.exists() else None

    def _mark_as(self, registry: str) -> None:
        self._write_once(self._mark, registry)

    def _write_once(self, path: Path, text: str) -> None:
        """A file that is there whole or not at all; the first who writes it wins."""
        with self.scratch() as folder, suppress(FileExistsError):
            (folder / path.name).write_text(text + "\n")
            os.link(folder / path.name, path)

    def _put_back(self, grave: Path) -> None:
        """Undo the first half of a drop; the same content may have come anew since."""
        _moved(grave, self._adapters / grave.name)
        sync(self._adapters)


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
    other = None if WEIGHTS_FILE in files else instead_of_weights(files, WEIGHTS_FILE)
    if other is not None:
        problems.append(other)
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


def _moved(folder: Path, to: Path) -> bool:
    """Rename a folder; False when something is there already."""
    try:
        folder.rename(to)
    except OSError as error:
        if error.errno not in OCCUPIED:
            raise
        return False
    return True
