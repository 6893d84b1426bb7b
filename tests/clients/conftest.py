"""`aril serve` in a process of its own, asked by programs that others wrote.

These tests run in an environment without Aril and torch (`make clients`); the server runs in Aril's, whose Python is
ARIL_PYTHON. Both servers are on a tiny random model with one adapter.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

TESTS = Path(__file__).parents[1]
HOUSE = os.environ.get("ARIL_PYTHON", str(TESTS.parent / ".venv/bin/python"))
READY = re.compile(r"^Aril serves \S+ at (http://\S+)$")
ADMIN_KEY = "the-admin-key"
SMALL = ("--kv-cache-memory", "32MiB", "--adapter-memory", "4MiB", "--threads", "1", "--served-model-name", "tiny")


@dataclass(frozen=True, slots=True)
class Server:
    """Where it answers, and with which key."""

    url: str
    key: str = "none"

    @property
    def v1(self) -> str:
        """What OpenAI's clients call the base URL."""
        return f"{self.url}/v1"

    def client(self, **fields: object) -> OpenAI:
        """OpenAI's own."""
        return OpenAI(**{"base_url": self.v1, "api_key": self.key, "max_retries": 0, "timeout": 60, **fields})


@contextmanager
def serving(home: Path, state: Path, *flags: str) -> Iterator[Server]:
    """`aril serve` with a registry of its own in `state`, as long as the context lasts."""
    command = ["serve", str(home / "model"), "--port", "0", "--state-dir", str(state), *SMALL, *flags]
    environment = {**os.environ, "ARIL_ADMIN_KEY": ADMIN_KEY, "ARIL_API_KEY": "", "ARIL_DATABASE_URL": ""}
    with (state.parent / f"{state.name}.log").open("w") as log:
        process = subprocess.Popen(
            [HOUSE, "-m", "aril.cli", *command], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    try:
        assert process.stdout is not None
        found = next((match for line in process.stdout if (match := READY.match(line.strip()))), None)
        assert found, Path(log.name).read_text()
        yield Server(found[1])
    finally:
        process.terminate()
        process.wait(30)


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the tests that could go on for ever do."""
    parser.addoption("--examples", type=int, default=15, help="of each operation of the API, for schemathesis")
    parser.addoption("--seeds", type=int, default=1, help="answers to each schema of the JSON Schema suite")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model and its adapter."""
    folder = tmp_path_factory.mktemp("house")
    subprocess.run([HOUSE, "-m", "builders.house", str(folder)], cwd=TESTS, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def server(home: Path) -> Iterator[Server]:
    """Open to everybody, with the adapter `red`."""
    with serving(home, home / "open", "--lora-modules", f"red={home / 'red'}") as found:
        yield found


@pytest.fixture(scope="session")
def guarded(home: Path) -> Iterator[Server]:
    """One that asks for keys; `key` is good for everything."""
    with serving(home, home / "guarded", "--api-key", "good") as found:
        yield Server(found.url, "good")


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[OpenAI]:
    """Of the open one."""
    with server.client() as found:
        yield found


def make_key(server: Server, name: str, *, scopes: Sequence[str] = ("infer",), **limits: int) -> str:
    """A new key of a tenant."""
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {ADMIN_KEY}"}) as admin:
        made = admin.post("/admin/v1/keys", json={"name": name, "scopes": list(scopes), **limits})
    assert made.status_code == 201, made.text
    return str(made.json()["key"])


def run(command: Sequence[str], **environment: str) -> str:
    """What a program says that must succeed."""
    path = f"{os.environ['PATH']}:{Path(sys.executable).parent}"
    done = subprocess.run(
        command, env={**os.environ, "PATH": path, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5000:]
    return done.stdout
