"""Where things lie while they are made or taken away: a folder for each process, which a lock tells alive from dead.

    <root>/<process>.lock       held by the process for as long as it lives
    <root>/<process>/           what it works on; `graves` holds what may still have to go back

Whoever gets the lock of a process knows that it is dead, and may clear up after it. Knows nothing of adapters.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

GRAVES = "graves"
LOCK = ".lock"


class Staging:
    """One process's part of `root`, made when it is first needed. Its methods may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._making = threading.Lock()
        self._lock: TextIO | None = None
        self._home: Path | None = None
        root.mkdir(parents=True, exist_ok=True)

    def new_folder(self) -> Path:
        """An empty folder; if this process dies, a sweep removes it."""
        return Path(tempfile.mkdtemp(dir=self._own()))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder for a while."""
        folder = self.new_folder()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def grave(self, name: str) -> Path:
        """Where to put something that may still go back; if this process dies, a sweep puts it back."""
        folder = self._own() / GRAVES / secrets.token_hex(8)
        folder.mkdir(parents=True)
        return folder / name

    def bury(self, grave: Path) -> None:
        """Remove for good what lies in a grave."""
        doomed = self._own() / secrets.token_hex(8)
        grave.parent.rename(doomed)  # from here on nobody puts it back, so it may be seen half removed
        shutil.rmtree(doomed, ignore_errors=True)

    def sweep(self, put_back: Callable[[Path], None]) -> int:
        """Clear up after dead processes, and say how many things they had left; what lay in graves is put back."""
        return sum(self._sweep(name, put_back) for name in sorted(self._names()))

    def _own(self) -> Path:
        with self._making:
            if self._home is None:
                self._lock, self._home = self._claim()
            return self._home

    def _claim(self) -> tuple[TextIO, Path]:
        while True:
            home = self._root / secrets.token_hex(8)
            lock = _lock_of(home)
            file = lock.open("x")
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_still(lock, file):  # and no sweep has come in between
                home.mkdir()
                return file, home
            file.close()

    def _names(self) -> set[str]:
        return {path.name.removesuffix(LOCK) for path in self._root.iterdir()}

    def _sweep(self, name: str, put_back: Callable[[Path], None]) -> int:
        home = self._root / name
        lock = _lock_of(home)
        with lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return 0  # it lives
            graves = list((home / GRAVES).glob("*/*"))
            left = len(graves) + sum(1 for path in _inside(home) if path.name != GRAVES)
            for grave in graves:
                put_back(grave)
            shutil.rmtree(home, ignore_errors=True)
            with suppress(FileNotFoundError):
                lock.unlink()
        return left


def sync(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_of(home: Path) -> Path:
    return home.with_name(home.name + LOCK)


def _is_still(path: Path, file: TextIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
