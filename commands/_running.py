"""Which servers run on this machine: each leaves its process id and its URL in the lock file of its state folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.parse import SplitResult, urlsplit

from ._flags import state_home

LOCK_FILE = "lock"
HERE = ("127.0.0.1", "localhost", "::1")


def sign(lock: IO[str], url: str) -> None:
    """Say in a lock file that we hold who we are."""
    lock.truncate(0)  # what a former holder said
    lock.write(f"{os.getpid()} {url}\n")
    lock.flush()


def state_dir_of(url: str) -> Path | None:
    """The state folder of the living server that answers at `url`, if it is one of ours, wherever the folder is."""
    wanted = urlsplit(url)
    return next((folder for folder, found in _servers() if _is_same(urlsplit(found), wanted)), None)


def urls() -> list[str]:
    """Of all living servers of ours on this machine."""
    return sorted({url for _, url in _servers()})


def _servers() -> Iterator[tuple[Path, str]]:
    """State folder and URL of each: those at their usual place, then those whose lock file a process of ours holds."""
    for folder in (*state_home().glob("*"), *_held()):
        if (url := _living(folder / LOCK_FILE)) is not None:
            yield folder, url


def _held() -> Iterator[Path]:
    """The folders of the lock files that processes have open, as far as we may look."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another's, or gone by now
            for link in (process / "fd").iterdir():
                file = Path(os.readlink(link))
                if file.name == LOCK_FILE:
                    yield file.parent


def _living(lock: Path) -> str | None:
    """The URL of the server that holds a lock file."""
    try:
        pid, _, url = lock.read_text().strip().partition(" ")
        os.kill(int(pid), 0)
    except (OSError, ValueError):
        return None
    return url


def _is_same(found: SplitResult, wanted: SplitResult) -> bool:
    try:
        ports, hosts = (found.port, wanted.port), (found.hostname, wanted.hostname)
    except ValueError:
        return False
    return ports[0] == ports[1] and (hosts[0] == hosts[1] or all(host in HERE for host in hosts))
