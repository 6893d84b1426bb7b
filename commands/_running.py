"""Which servers run on this machine: each leaves its process id and its URL in the lock file of its state folder."""

from __future__ import annotations

import os
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
    """The state folder of the living server that answers at `url`, if it is one of ours at its usual place."""
    wanted = urlsplit(url)
    for folder in state_home().glob("*"):
        found = _living(folder / LOCK_FILE)
        if found is not None and _is_same(found, wanted):
            return folder
    return None


def _living(lock: Path) -> SplitResult | None:
    """The URL of the server that holds a lock file."""
    try:
        pid, _, url = lock.read_text().strip().partition(" ")
        os.kill(int(pid), 0)
    except (OSError, ValueError):
        return None
    return urlsplit(url)


def _is_same(found: SplitResult, wanted: SplitResult) -> bool:
    try:
        ports, hosts = (found.port, wanted.port), (found.hostname, wanted.hostname)
    except ValueError:
        return False
    return ports[0] == ports[1] and (hosts[0] == hosts[1] or all(host in HERE for host in hosts))
