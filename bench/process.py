"""`aril serve` as a process of its own, that can be started, asked, and killed without mercy."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from .client import Client

START_SECONDS = 300.0  # the very first start may fetch and convert the base
COMMAND = (sys.executable, "-c", "import sys; from aril.cli import main; sys.exit(main())")


class ServerProcess:
    """One server with its state in `folder`; one process at a time."""

    def __init__(self, model: str, folder: Path, *options: str) -> None:
        self.store = folder / "store"
        self._key = secrets.token_hex(16)
        self._port = _free_port()
        self._log = folder / "server.log"
        self._command = [
            *COMMAND, "serve", model, "--port", str(self._port), "--state-dir", str(folder / "state"),
            "--store", str(self.store), "--admin-key", self._key, *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it, wait until it can serve, return the seconds that took. Raises RuntimeError with its last words."""
        began = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        with self.client() as client:
            while not _is_ready(client):
                if self._process.poll() is not None or time.monotonic() - began > START_SECONDS:
                    self.kill()
                    raise RuntimeError(f"the server did not start:\n{self._log.read_text()[-4000:]}")
                time.sleep(0.01)
        return time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def resident(self) -> int:
        """Bytes of memory that it has now."""
        assert self._process is not None, "not started"
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

    def plain_client(self) -> Client:
        """A client for load; it has no key."""
        return Client("127.0.0.1", self._port)

    def client(self) -> httpx.Client:
        """A client with the admin key."""
        return httpx.Client(**self._access)

    def async_client(self) -> httpx.AsyncClient:
        """The same for many requests at once."""
        return httpx.AsyncClient(**self._access, limits=httpx.Limits(max_connections=None))

    @property
    def _access(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._key}"}
        return {"base_url": f"http://127.0.0.1:{self._port}", "headers": headers, "timeout": 60.0, "trust_env": False}


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/ready").is_success
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
