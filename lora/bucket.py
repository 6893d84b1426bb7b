"""The store in an S3 bucket, with a local folder as its cache.

    <prefix>/adapters/<digest>/<generation>/    weights and README.md, then adapter_config.json, whose presence counts
    <prefix>/adapters/<digest>/holds/<process>  that process relies on what is there, since this was written
    <prefix>/uploads/<upload>/<part>            as in parts.py
    <prefix>/registry                           the registry whose store this is

A bucket renames nothing, so every upload of bytes is a generation of its own, which is never written to again. A commit
writes its hold first and then looks whether its content is there; a drop takes the configurations away first and then
looks for holds. One of them always sees the other. What a drop that died took away, a sweep puts back.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ..core.errors import NotFound, Unavailable
from .config import CONFIG_FILE, WEIGHTS_FILE
from .objects import Bucket, Entry
from .store import DIGEST, MARK, AdapterStore, Staged, content_digest
from .streams import reading

ADAPTERS, UPLOADS, HOLDS = "adapters", "uploads", "holds"
GRAVE = "grave.json"  # a configuration that a drop has taken away for now
HOLD_SECONDS = 60  # a commit's hold counts so long; the row that names the bytes is there sooner
LEFTOVER_SECONDS = 3600  # what is unfinished for so long is nobody's any more


@dataclass(slots=True)
class _Kept:
    """What the bucket holds of one digest: objects by generation, and holds."""

    generations: dict[str, dict[str, Entry]] = field(default_factory=dict)
    holds: list[Entry] = field(default_factory=list)

    @property
    def whole(self) -> list[dict[str, Entry]]:
        """The generations that are there completely."""
        return [files for files in self.generations.values() if CONFIG_FILE in files]

    @property
    def marks(self) -> list[Entry]:
        """What says when, and by which process, this content was committed."""
        return [files[CONFIG_FILE] for files in self.whole] + self.holds

    @property
    def names(self) -> list[str]:
        """Every object but the configurations that make a generation whole."""
        entries = [e for files in self.generations.values() for name, e in files.items() if name != CONFIG_FILE]
        return [entry.name for entry in entries + self.holds]


class BucketStore(AdapterStore):
    """A store whose truth is a bucket. What `path` gives lies in the cache, checked against its digest."""

    def __init__(
        self, url: str, cache: Path, *, hold_seconds: float = HOLD_SECONDS, leftover_seconds: float = LEFTOVER_SECONDS
    ) -> None:
        super().__init__(cache)
        self._bucket = Bucket(url)
        self._hold_seconds = hold_seconds
        self._leftover_seconds = leftover_seconds
        self._me = secrets.token_hex(8)
        self.parts = PartBucket(self._bucket)

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return self._bucket.url

    def identity(self) -> str:
        """The bucket's own name, which no other has."""
        return self._bucket.url

    def commit(self, staged: Staged) -> str:
        """Keep an upload for good, in the bucket, and return its digest."""
        digest = content_digest(staged.folder)
        self._bucket.write(f"{ADAPTERS}/{digest}/{HOLDS}/{self._me}", b"")
        if not self._look(digest).whole:
            self._send(digest, staged.folder)
        return super().commit(staged)

    def path(self, digest: str) -> Path:
        """The folder of a revision, fetched first if need be; raises NotFound, and Unavailable without the bucket."""
        try:
            return super().path(digest)
        except NotFound:
            if not DIGEST.fullmatch(digest):
                raise
        self._fetch(digest)
        return super().path(digest)

    def drop(self, digest: str, *, needed: Callable[[], bool] = lambda: False) -> bool:
        """`AdapterStore.drop`, in the bucket and in the cache. A fresh commit of another process forbids it."""
        kept = self._look(digest) if DIGEST.fullmatch(digest) else _Kept()
        if self._is_held(kept) or needed():
            return False
        self._bury(kept.whole)
        again = self._look(digest)
        if self._is_held(again) or needed():
            self._dig_out(kept.whole)
            return False
        self._bucket.delete(kept.names)
        self._bucket.delete([_grave_of(files) for files in kept.whole])
        was_cached = super().drop(digest)
        return was_cached or bool(kept.whole)

    def digests(self) -> list[str]:
        """Every revision in the bucket or in the cache, sorted."""
        there = {digest for digest, kept in self._all().items() if kept.whole}
        return sorted(there.union(super().digests()))

    def sweep(self) -> int:
        """`AdapterStore.sweep`, and what no process can still be working on in the bucket."""
        left = 0
        for kept in self._all().values():
            for files in kept.generations.values():
                if CONFIG_FILE not in files and self._is_left(files.values()):
                    self._finish(files)
                    left += 1
        return super().sweep() + left

    @property
    def _marked_at(self) -> str:
        return f"{self._bucket.url}/{MARK}"

    def _owner(self) -> str | None:
        try:
            return b"".join(self._bucket.read(MARK)).decode().strip()
        except NotFound:
            return None

    def _mark_as(self, registry: str) -> None:
        self._bucket.write(MARK, registry.encode() + b"\n")

    def _send(self, digest: str, folder: Path) -> None:
        place = f"{ADAPTERS}/{digest}/{self._me}-{secrets.token_hex(4)}"
        for file in sorted(folder.iterdir(), key=lambda file: file.name == CONFIG_FILE):
            self._bucket.write(f"{place}/{file.name}", file)

    def _fetch(self, digest: str) -> None:
        whole = self._look(digest).whole
        if not whole:
            raise NotFound(f"no adapter bytes with digest {digest!r} in {self._bucket.url}")
        files = {name: entry for name, entry in whole[0].items() if name != GRAVE}
        room = sum(entry.size for entry in files.values())
        staged = self.stage({name: reading(self._bucket.read(entry.name)) for name, entry in files.items()}, room)
        if content_digest(staged.folder) != digest:
            staged.discard()
            raise Unavailable(f"what {self._bucket.url} holds under {digest} is something else", code="store_corrupt")
        super().commit(staged)

    def _look(self, digest: str) -> _Kept:
        return _sorted(self._bucket.list(f"{ADAPTERS}/{digest}")).get(digest, _Kept())

    def _all(self) -> dict[str, _Kept]:
        return _sorted(self._bucket.list(ADAPTERS))

    def _is_held(self, kept: _Kept) -> bool:
        others = [mark for mark in kept.marks if self._me not in mark.name]
        return any(time.time() - mark.written < self._hold_seconds for mark in others)

    def _is_left(self, entries: Iterable[Entry]) -> bool:
        return all(time.time() - entry.written > self._leftover_seconds for entry in entries)

    def _bury(self, whole: Iterable[dict[str, Entry]]) -> None:
        for files in whole:
            self._bucket.write(_grave_of(files), b"".join(self._bucket.read(files[CONFIG_FILE].name)))
            self._bucket.delete([files[CONFIG_FILE].name])

    def _dig_out(self, whole: Iterable[dict[str, Entry]]) -> None:
        for files in whole:
            self._bucket.write(files[CONFIG_FILE].name, b"".join(self._bucket.read(_grave_of(files))))
            self._bucket.delete([_grave_of(files)])

    def _finish(self, files: dict[str, Entry]) -> None:
        """A dead process's drop is undone, its commit is thrown away."""
        if GRAVE in files:
            grave = files[GRAVE].name
            self._bucket.write(grave.removesuffix(GRAVE) + CONFIG_FILE, b"".join(self._bucket.read(grave)))
        doomed = [GRAVE] if GRAVE in files and WEIGHTS_FILE in files else list(files)
        self._bucket.delete([files[name].name for name in doomed])


class PartBucket:
    """Parts of uploads as objects. Implements lora.parts.Parts."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def keep(self, upload: str, part: str, file: Path) -> None:
        """Take over `file` as a part of `upload`."""
        self._bucket.write(f"{UPLOADS}/{upload}/{part}", file)
        file.unlink()

    def open(self, upload: str, part: str) -> BinaryIO:
        """A part, for reading; raises FileNotFoundError."""
        try:
            self._bucket.size(f"{UPLOADS}/{upload}/{part}")
        except NotFound as error:
            raise FileNotFoundError(error.message) from error
        return reading(self._bucket.read(f"{UPLOADS}/{upload}/{part}"))

    def drop(self, upload: str, parts: Collection[str] | None = None) -> None:
        """Remove an upload's parts, or those named; what is not there is fine."""
        if parts is None:
            parts = [entry.name.rpartition("/")[2] for entry in self._bucket.list(f"{UPLOADS}/{upload}")]
        self._bucket.delete([f"{UPLOADS}/{upload}/{part}" for part in parts])

    def uploads(self) -> list[str]:
        """Every upload of which there is a part, sorted."""
        return sorted({entry.name.split("/")[1] for entry in self._bucket.list(UPLOADS)})


def _sorted(entries: Iterable[Entry]) -> dict[str, _Kept]:
    """Listed objects, by digest and generation."""
    found: dict[str, _Kept] = {}
    for entry in entries:
        parts = entry.name.split("/")
        if len(parts) != 4 or not DIGEST.fullmatch(parts[1]):
            continue
        kept = found.setdefault(parts[1], _Kept())
        if parts[2] == HOLDS:
            kept.holds.append(entry)
        else:
            kept.generations.setdefault(parts[2], {})[parts[3]] = entry
    return found


def _grave_of(files: dict[str, Entry]) -> str:
    return files[CONFIG_FILE].name.removesuffix(CONFIG_FILE) + GRAVE
