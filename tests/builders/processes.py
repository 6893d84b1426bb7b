"""`aril serve` in processes that may be killed, several on one database."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
from aril.commands._process import READY

ADMIN_KEY = "the-admin-key"
SOCKET = re.compile(r"http://unix:(.+):")


class Running:
    """One server and a client of it, with the admin key."""

    def __init__(self, process: subprocess.Popen[str], url: str, verify: ssl.SSLContext | bool = True) -> None:
        self._process = process
        self.url = url
        headers, uds = {"Authorization": f"Bearer {ADMIN_KEY}"}, SOCKET.fullmatch(url)
        transport = httpx.HTTPTransport(uds=uds[1]) if uds else None
        base = "http://aril" if uds else url
        self.http = httpx.Client(base_url=base, timeout=60, headers=headers, transport=transport, verify=verify)

    def kill(self) -> None:
        """As a power cut would."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """As Ctrl-C would."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def told(self, number: signal.Signals) -> None:
        """It gets a signal."""
        self._process.send_signal(number)

    def all_told(self, number: signal.Signals) -> None:
        """It and all that it has started get a signal, as from a terminal or a service manager."""
        os.killpg(self._process.pid, number)

    def ended(self, seconds: float) -> int:
        """Its exit code; raises TimeoutExpired when it has not ended by then."""
        return self._process.wait(seconds)

    @property
    def pid(self) -> int:
        """Of the process that has the engine."""
        return self._process.pid

    def children(self) -> list[int]:
        """The processes that it has started and that live."""
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in found]

    def metric(self, name: str) -> dict[str, float]:
        """What /metrics says of `name`, by the labels as they stand there."""
        lines = [line for line in self.http.get("/metrics").text.splitlines() if line.startswith(name)]
        pairs = (line.removeprefix(name).rsplit(" ", 1) for line in lines)
        return {labels: float(value) for labels, value in pairs}

    def banner(self) -> str:
        """What it says beside its URL, once."""
        assert self._process.stdout is not None
        lines: list[str] = []
        while not lines or "Ctrl-C" not in lines[-1]:
            lines.append(self._process.stdout.readline())
            assert lines[-1], "it has ended"
        return "".join(lines)

    def models(self) -> list[str]:
        """The ids of /v1/models."""
        return [model["id"] for model in self.http.get("/v1/models").json()["data"]]

    def upload(self, name: str, folder: Path) -> httpx.Response:
        """POST a PEFT folder, and wait for the gate."""
        files = [("files", (file.name, file.read_bytes())) for file in folder.iterdir() if file.suffix != ".md"]
        return self.http.post("/admin/v1/adapters", data={"name": name, "wait": "60"}, files=files)

    def answers(self, model: str) -> int:
        """The status of one short request."""
        return self.http.post("/v1/completions", json={"model": model, "prompt": "a", "max_tokens": 2}).status_code


def launched(model: Path, state: Path, flags: Sequence[str], *, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """A server that is about to start, on a free port; `log` in its state folder is what it says on stderr."""
    environment = {**os.environ, "ARIL_ADMIN_KEY": ADMIN_KEY, "ARIL_API_KEY": "", "ARIL_DATABASE_URL": ""}
    command = [sys.executable, "-m", "aril.cli", "serve", str(model), "--port", "0", "--state-dir", str(state), *flags]
    state.mkdir(exist_ok=True)
    with (state / "log").open("a") as log:
        return subprocess.Popen(command, stdout=stdout, stderr=log, text=True, env=environment, start_new_session=True)


@contextmanager
def started(
    model: Path, state: Path, flags: Sequence[str], *, verify: ssl.SSLContext | bool = True
) -> Iterator[Running]:
    """A server on a free port; it is killed at the end, if it is not dead by then."""
    process = launched(model, state, flags)
    running = None
    try:
        assert process.stdout is not None
        running = Running(process, _url(process.stdout, state / "log"), verify)
        yield running
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if running is not None:
            running.http.close()
        if process.stdout is not None:
            process.stdout.close()


def _url(said: IO[str], log: Path) -> str:
    for line in said:
        if found := READY.match(line.strip()):
            return found[1]
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")
