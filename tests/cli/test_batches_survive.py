"""Real servers killed in the middle of a batch: every line has one answer, from whoever goes on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from builders.batches import COMPLETIONS, requests
from builders.commands import SMALL, Files
from builders.postgres import running_postgres
from builders.processes import Running, started

LINES = 40
FLAGS = [*SMALL, "--served-model-name", "tiny", "--batch-lines", "2"]
LIMIT = 120.0  # seconds, on a machine that has other things to do


def begin(server: Running) -> str:
    """The path of a batch of short answers."""
    sent = {"file": ("in.jsonl", requests(LINES, max_tokens=32))}
    file = server.http.post("/v1/files", data={"purpose": "batch"}, files=sent).json()
    asked = {"input_file_id": file["id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
    answer = server.http.post("/v1/batches", json=asked)
    assert answer.status_code == 200, answer.text
    return f"/v1/batches/{answer.json()['id']}"


def until_answered(server: Running, path: str, num_lines: int) -> dict[str, Any]:
    """The batch, once so many of its lines have answers."""
    deadline = time.monotonic() + LIMIT
    while (found := server.http.get(path).json())["request_counts"]["completed"] < num_lines:
        assert time.monotonic() < deadline, found
    return dict(found)


def check_ended(server: Running, path: str) -> None:
    """Every line has one answer."""
    deadline = time.monotonic() + LIMIT
    while (batch := server.http.get(path).json())["status"] != "completed":
        assert time.monotonic() < deadline, batch
    text = server.http.get(f"/v1/files/{batch['output_file_id']}/content").text
    assert [json.loads(line)["custom_id"] for line in text.splitlines()] == [f"r{at}" for at in range(LINES)]
    assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}


def test_a_killed_server_goes_on_when_it_is_started_again(files: Files, tmp_path: Path) -> None:
    path, before = "", 0
    for num_lines in (3, 9):
        with started(files.model, tmp_path / "state", FLAGS) as server:
            path = path or begin(server)
            found = until_answered(server, path, num_lines)
            assert found["request_counts"]["completed"] >= before
            before = found["request_counts"]["completed"]
            server.kill()
    with started(files.model, tmp_path / "state", FLAGS) as server:
        assert server.http.get(path).json()["request_counts"]["completed"] >= before
        check_ended(server, path)


def test_another_server_takes_over_from_a_killed_one(files: Files, tmp_path: Path) -> None:
    with running_postgres() as postgres:
        shared = ["--database-url", postgres.new_database(), "--store", str(tmp_path / "store")]
        with started(files.model, tmp_path / "a", [*FLAGS, *shared]) as first:
            path = begin(first)
            until_answered(first, path, 2)
            with started(files.model, tmp_path / "b", [*FLAGS, *shared]) as second:
                first.kill()
                check_ended(second, path)
