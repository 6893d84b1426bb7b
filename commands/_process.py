"""A server in a process of its own, for commands that need one for a while."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from ..core.bearer import new_key
from ..core.errors import Unavailable
from ._waiting import telling

READY = re.compile(r"^Aril serves \S+ at (https?://\S+)$")
GRACE = 10  # seconds between being asked to end and being ended
CLI = f"{__package__.rpartition('.')[0]}.cli"


@dataclass(frozen=True, slots=True)
class Server:
    """Where it answers, and the key of its admin API."""

    url: str
    admin_key: str


@contextmanager
def running(model: str, flags: Sequence[str] = (), *, tell: Callable[[str], None] = lambda _: None) -> Iterator[Server]:
    """`aril serve MODEL` on a free port with a registry that is thrown away; it ends with the context. `tell` hears
    how a long start goes.

    Raises Unavailable with the server's last words when it does not come up.
    """
    key = new_key()
    environment = {**os.environ, "ARIL_ADMIN_KEY": key, "ARIL_API_KEY": "", "ARIL_DATABASE_URL": ""}
    with tempfile.TemporaryDirectory(prefix="aril-") as folder, tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", CLI, "serve", model, "--port", "0", "--state-dir", folder, *flags]
        # A session of its own: Ctrl-C in the terminal is for the command, which then ends the server.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment, start_new_session=True
        )
        try:
            with telling(said.fileno(), tell):
                url = _url_of(process, said)
            yield Server(url, key)
        finally:
            _end(process)


def _url_of(process: subprocess.Popen[str], said: IO[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := READY.match(line.strip()):
            return found[1]
    said.seek(0)
    words = [line.strip().removeprefix("aril: ") for line in said if line.strip()]
    raise Unavailable(words[-1] if words else "the server ended without a word")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
