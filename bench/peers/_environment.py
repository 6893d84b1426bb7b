"""A peer's environment: a virtual one in its folder, made at first use and again when its pins change."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...models.source import default_cache
from ._peer import Peer

MADE = "made.json"  # written last: what is in the environment
LIBRARIES = "libraries"


def folder_of(name: str) -> Path:
    """Where the peer called `name` lives."""
    return default_cache() / "peers" / name


def python_of(peer: Peer, home: Path) -> Path:
    """The interpreter that its workers run under."""
    return home / "bin" / "python" if peer.pins else Path(sys.executable)


def is_made(peer: Peer, home: Path) -> bool:
    """Whether its environment holds what is asked now."""
    record = home / MADE
    return not peer.pins or (record.is_file() and json.loads(record.read_text()) == _asked(peer))


def make(peer: Peer, home: Path) -> None:
    """Make the environment, or bring it up to date. Raises RuntimeError with pip's last words."""
    if is_made(peer, home):
        return
    home.mkdir(parents=True, exist_ok=True)
    python = str(python_of(peer, home))
    if not Path(python).exists():
        _run([sys.executable, "-m", "venv", str(home)])
    _run([python, "-m", "pip", "install", "--quiet", *peer.pins])
    if peer.unwanted:
        _run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *peer.unwanted])
    for deb in peer.debs:
        _unpack(deb, home / LIBRARIES)
    (home / MADE).write_text(json.dumps(_asked(peer)))


def library(home: Path, name: str) -> Path | None:
    """A shared library of the environment, or of the system; None when there is none."""
    places = (home / LIBRARIES, home / "lib", Path("/usr/lib"), Path("/usr/local/lib"))
    return next((found for place in places for found in sorted(place.rglob(name))), None)


def _asked(peer: Peer) -> list[list[str]]:
    return [list(peer.pins), list(peer.unwanted), list(peer.debs)]


def _unpack(deb: str, target: Path) -> None:
    """The files of a Debian package, where there is apt; a peer runs without them too, only slower."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        got = subprocess.run(["apt-get", "download", deb], cwd=folder, capture_output=True, text=True, check=False)
        for file in Path(folder).glob("*.deb"):
            _run(["dpkg", "-x", str(file), str(target)])
    if got.returncode:
        print(f"{deb} could not be had and is left out: {got.stderr.strip()[-200:]}", file=sys.stderr)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-1000:]}")
