"""Pieces of uploads that have not come whole yet, in a folder that several processes may share.

    <root>/<upload>/<part>

A part appears by one rename with all its bytes durable, under a name that its maker alone uses, and never changes.
Which parts an upload consists of, in which order, is known elsewhere; what is not known there is only in the way.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, Protocol

from .staging import sync

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Parts(Protocol):
    """Where parts are kept. Methods may be called from any thread."""

    def keep(self, upload: str, part: str, file: Path) -> None:
        """Take over `file`, which is durable, as a part of `upload`."""

    def open(self, upload: str, part: str) -> BinaryIO:
        """A part, for reading; raises FileNotFoundError."""

    def drop(self, upload: str, parts: Collection[str] | None = None) -> None:
        """Remove an upload's parts, or those named; what is not there is fine."""

    def uploads(self) -> list[str]:
        """Every upload of which there is a part, sorted."""


class PartFolder:
    """Parts as files on the same file system as the staging of whoever brings them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def keep(self, upload: str, part: str, file: Path) -> None:
        """Take over `file`, which is durable, as a part of `upload`."""
        home = self._home(upload)
        if not home.is_dir():
            home.mkdir(exist_ok=True)
            sync(self._root)
        file.rename(home / _plain(part))
        sync(home)

    def open(self, upload: str, part: str) -> BinaryIO:
        """A part, for reading; raises FileNotFoundError."""
        return (self._home(upload) / _plain(part)).open("rb")

    def drop(self, upload: str, parts: Collection[str] | None = None) -> None:
        """Remove an upload's parts, or those named; what is not there is fine."""
        if parts is None:
            shutil.rmtree(self._home(upload), ignore_errors=True)
        for part in parts or ():
            (self._home(upload) / _plain(part)).unlink(missing_ok=True)

    def uploads(self) -> list[str]:
        """Every upload of which there is a part, sorted."""
        return sorted(path.name for path in self._root.iterdir())

    def _home(self, upload: str) -> Path:
        return self._root / _plain(upload)


def _plain(name: str) -> str:
    assert PLAIN.fullmatch(name), f"{name!r} is no name of ours"
    return name
