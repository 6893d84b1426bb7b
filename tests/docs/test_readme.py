"""Every command and every program in the README runs, on the demo base, as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from aril.commands._process import READY, Server, running
from builders.models import make_model

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
NOT_RUN_HERE = re.compile(r"^make |^\. \.venv|^aril serve ", re.MULTILINE)
FOLDER = "./Qwen2.5-1.5B-Instruct"  # of the README's example; a tiny model of that family stands for it
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as in an activated environment
WRITTEN_AT = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def demo() -> Iterator[Server]:
    """`make serve`, but for the port."""
    with running("demo", ["--kv-cache-memory", "256MiB"]) as server:
        yield server


def test_the_readme_has_commands() -> None:
    assert {kind for kind, _ in BLOCKS} == {"bash", "python"}


@pytest.mark.parametrize("target", ["demo", "serve", "test"])
def test_each_make_target_is_one(target: str) -> None:
    shown = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ".venv/bin/" in shown


@pytest.mark.parametrize("text", [t for kind, t in BLOCKS if kind == "bash" and not NOT_RUN_HERE.search(t)])
def test_a_command_of_the_readme_succeeds(text: str, demo: Server) -> None:
    strict = text.replace(WRITTEN_AT, demo.url).replace("curl ", "curl --fail-with-body --silent ")
    environment = {**os.environ, "ARIL_ADMIN_KEY": demo.admin_key, "ARIL_URL": demo.url, "PATH": PATH}
    done = subprocess.run(
        ["bash", "-ec", strict], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("text", [t for kind, t in BLOCKS if kind == "python"])
def test_a_program_of_the_readme_answers(text: str, demo: Server) -> None:
    written = text.replace(WRITTEN_AT, demo.url)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", written], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Arrr" in done.stdout


def test_a_local_folder_is_served_as_the_readme_says(tmp_path: Path) -> None:
    (command,) = (t for _, t in BLOCKS if FOLDER in t)
    make_model(tmp_path / FOLDER, "qwen2", max_position_embeddings=8192)
    words = [sys.executable, "-m", "aril.cli", *command.split()[1:]]
    environment = {**os.environ, "ARIL_STATE_DIR": str(tmp_path / "state")}
    server = subprocess.Popen(
        [*words, "--port", "0", "--kv-cache-memory", "64MiB"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = _ready(server)
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401
        known = httpx.get(f"{url}/v1/models", headers={"Authorization": "Bearer secret"}, trust_env=False)
        assert known.json()["data"][0]["max_model_len"] == 4096
    finally:
        server.terminate()
        server.wait()


def _ready(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    end = time.monotonic() + 120
    for line in server.stdout:
        if found := READY.match(line.strip()):
            return found[1]
        assert time.monotonic() < end
    raise AssertionError("the server ended")
