"""Real servers killed in the middle of uploads in parts: what was acknowledged stays, and another server goes on."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from builders.commands import SMALL, Files
from builders.parts import UPLOADS, digest_header, files_of
from builders.postgres import running_postgres
from builders.processes import Running, started
from builders.s3 import running_s3

PART = 700  # bytes
ROUNDS = 4


def announce(server: Running, files: Mapping[str, bytes]) -> str:
    """The path of a new upload."""
    told = {file: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for file, data in files.items()}
    answer = server.http.post(UPLOADS, json={"name": "pirate", "files": told})
    assert answer.status_code == 201, answer.text
    return str(answer.headers["location"])


def send(
    server: Running, url: str, files: Mapping[str, bytes], acknowledged: dict[str, int], most: int = 1 << 30
) -> None:
    """Send up to `most` parts from where the server says; writes down what it acknowledged."""
    for file, state in server.http.get(url).json()["files"].items():
        assert state["received"] >= acknowledged[file]
        for offset in range(state["received"], state["size"], PART):
            data = files[file][offset : offset + PART]
            headers = {"Upload-Offset": str(offset), "Content-Digest": digest_header(data)}
            answer = server.http.put(f"{url}/files/{file}", content=data, headers=headers)
            assert answer.status_code == 200, answer.text
            acknowledged[file] = offset + len(data)
            most -= 1
            if not most:
                return


def ready(server: Running, url: str) -> dict[str, Any]:
    """Complete an upload and wait for the gate."""
    done = server.http.post(f"{url}/complete")
    assert done.status_code == 202, done.text
    while (revision := server.http.get(done.json()["revision_url"]).json())["state"] in ("uploaded", "checking"):
        pass
    assert revision["state"] == "ready", revision
    return dict(revision)


def test_no_kill_loses_what_was_acknowledged(files: Files, tmp_path: Path) -> None:
    sent, moments = files_of(files.adapter), random.Random(0)
    acknowledged, url = dict.fromkeys(sent, 0), ""
    for _ in range(ROUNDS):
        with started(files.model, tmp_path / "state", [*SMALL, "--served-model-name", "tiny"]) as server:
            killer = threading.Timer(moments.uniform(0.05, 0.5), server.kill)
            try:
                url = url or announce(server, sent)
                killer.start()
                send(server, url, sent, acknowledged)
            except httpx.TransportError:
                pass  # it is dead
            killer.join()
    with started(files.model, tmp_path / "state", [*SMALL, "--served-model-name", "tiny"]) as server:
        send(server, url, sent, acknowledged)
        ready(server, url)
        assert server.answers("pirate") == 200
        assert list((tmp_path / "state" / "store" / "uploads").iterdir()) == []


def test_servers_with_a_bucket_for_a_store_go_on_for_each_other(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = files_of(files.adapter)
    acknowledged = dict.fromkeys(sent, 0)
    with running_postgres() as postgres, running_s3() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        shared = ["--database-url", postgres.new_database(), "--store", s3.new_place()]
        flags = [*SMALL, "--served-model-name", "tiny", *shared]
        with started(files.model, tmp_path / "b", flags) as second:
            with started(files.model, tmp_path / "a", flags) as first:
                url = announce(first, sent)
                send(first, url, sent, acknowledged, most=5)
                first.kill()
            send(second, url, sent, acknowledged)
            ready(second, url)
            assert second.answers("pirate") == 200
        with started(files.model, tmp_path / "c", flags) as third:
            assert third.models() == ["tiny", "pirate"]
            assert third.answers("pirate") == 200
