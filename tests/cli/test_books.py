"""Keys and usage of a real server: what a kill may lose, what an orderly end may not, and where no key is found."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from aril.admin_api.books import FLUSH_SECONDS
from builders.commands import SMALL, Files
from builders.postgres import running_postgres
from builders.processes import Running, started

FLAGS = [*SMALL, "--served-model-name", "tiny", "--log-level", "debug"]
MARGIN = 1.0  # seconds that a flush may take on a busy machine
BODY = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 2, "ignore_eos": True}


@pytest.fixture(params=["sqlite", "postgresql"])
def flags(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Those of a server on each kind of database."""
    if request.param == "sqlite":
        yield FLAGS
        return
    with running_postgres() as postgres:
        yield [*FLAGS, "--database-url", postgres.new_database()]


def used(server: Running) -> list[dict[str, int]]:
    """All usage, added up by model."""
    found: list[dict[str, int]] = server.http.get("/admin/v1/usage", params={"group_by": "model"}).json()["data"]
    return found


def test_a_kill_loses_no_more_than_what_ended_since_the_last_flush(
    files: Files, tmp_path: Path, flags: list[str]
) -> None:
    with started(files.model, tmp_path / "state", flags) as server:
        ended, begun = [], time.monotonic()
        while time.monotonic() < begun + FLUSH_SECONDS + MARGIN + 1.3:
            assert server.http.post("/v1/completions", json=BODY).is_success
            ended.append(time.monotonic())
        server.kill()
        killed = time.monotonic()
    certain = sum(at < killed - FLUSH_SECONDS - MARGIN for at in ended)
    with started(files.model, tmp_path / "state", flags) as server:
        (line,) = used(server)
        assert 0 < certain <= line["requests"] <= len(ended)
        assert line["prompt_tokens"] == 3 * line["requests"]
        assert line["completion_tokens"] == 2 * line["requests"]
        assert server.http.get("/admin/v1/audit/verify").json()["sound"] is True


def test_an_orderly_end_loses_nothing_not_even_what_it_breaks_off(files: Files, tmp_path: Path) -> None:
    long = {**BODY, "max_tokens": 120, "stream": True}
    with started(files.model, tmp_path / "state", FLAGS) as server:
        for _ in range(3):
            assert server.http.post("/v1/completions", json=BODY).is_success
        with server.http.stream("POST", "/v1/completions", json=long) as answer:
            next(answer.iter_lines())
            server.stop()
    with started(files.model, tmp_path / "state", FLAGS) as server:
        (line,) = used(server)
        assert (line["requests"], line["prompt_tokens"]) == (4, 12)


def test_no_key_is_in_the_log_or_on_the_disk(files: Files, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with started(files.model, state, FLAGS) as server:
        made = server.http.post("/admin/v1/keys", json={"name": "k"}, headers={"Idempotency-Key": "once"}).json()
        secret, url = made["key"], str(server.http.base_url)
        for headers in ({"Authorization": f"Bearer {secret}"}, {"Authorization": secret}, {"X-Api-Key": secret}):
            for body in (BODY, {**BODY, "model": secret}, {**BODY, "secret": secret}, [secret]):
                httpx.post(f"{url}/v1/completions", json=body, headers=headers)
                httpx.post(f"{url}/admin/v1/keys", json=body, headers=headers)
        for path in ("/v1/models", "/admin/v1/keys", f"/v1/models/{secret}", f"/{secret}"):
            httpx.get(url + path, params={"api_key": secret})
        assert secret not in httpx.get(f"{url}/metrics").text
        server.stop()
    with sqlite3.connect(state / "registry.sqlite3") as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    kept = [file for file in state.rglob("*") if file.is_file()]
    assert {"log", "registry.sqlite3"} <= {file.name for file in kept}
    assert made["id"].encode() in (state / "registry.sqlite3").read_bytes()
    assert [file.name for file in kept if secret.encode() in file.read_bytes()] == []
