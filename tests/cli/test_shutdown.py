"""How `aril serve` ends: what runs goes on for a while, nothing new begins, and nobody waits for idle connections."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from builders.commands import SMALL, Files
from builders.models import make_model
from builders.processes import Running, started

SOON = 20.0  # seconds, on a machine that is busy with other things
# Some seconds of work on any machine.
LONG = {"model": "tiny", "prompt": [[5 + at % 100] for at in range(512)], "max_tokens": 60, "temperature": 0}
LONG |= {"ignore_eos": True, "stream": True}
BACKGROUND = {"model": "tiny", "input": "a", "background": True, "max_output_tokens": 3000, "ignore_eos": True}
ROOM = ("--max-model-len", "4096", "--kv-cache-memory", "16MiB")


@pytest.fixture(params=["1", "2"], ids=["one process", "workers"])
def files(files: Files, request: pytest.FixtureRequest) -> Files:
    """For servers that answer HTTP in so many processes."""
    return replace(files, flags=("--api-server-count", request.param))


@contextmanager
def serving(files: Files, folder: Path, drain: str) -> Iterator[Running]:
    flags = [*SMALL, *files.flags, "--served-model-name", "tiny", "--drain-timeout", drain]
    with started(files.model, folder / "state", flags) as server:
        yield server


@contextmanager
def streaming(server: Running) -> Iterator[Iterator[str]]:
    """The lines of a stream that has begun."""
    with server.http.stream("POST", "/v1/completions", json=LONG) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


def until_the_door_is_shut(server: Running) -> None:
    """Returns when no new connection is taken."""
    with suppress(httpx.TransportError):
        while True:
            httpx.get(f"{server.url}/health")


def last_event(lines: Iterator[str]) -> dict[str, object]:
    """The event before [DONE]."""
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert found[-1] == "[DONE]"
    event: dict[str, object] = json.loads(found[-2])
    return event


@pytest.mark.parametrize("files", ["1"], indirect=True, ids=["one process"])  # of several, an idle one just ends
def test_what_runs_ends_well_and_nothing_new_begins(files: Files, tmp_path: Path) -> None:
    with serving(files, tmp_path, "600") as server, httpx.Client(base_url=server.url) as kept:
        assert kept.get("/health/ready").status_code == 200
        with streaming(server) as lines:
            server.told(signal.SIGTERM)
            until_the_door_is_shut(server)
            asked = kept.post("/v1/completions", json={"model": "tiny", "prompt": "a"})
            assert "choices" in last_event(lines)
        assert (asked.status_code, asked.json()["error"]["code"]) == (503, "shutting_down")
        assert asked.headers["connection"] == "close"
        assert server.ended(SOON) == 0


@pytest.mark.parametrize(("drain", "status"), [("600", "incomplete"), ("0.1", "failed")])
def test_what_is_made_in_the_background_alone_is_waited_for_too(
    files: Files, tmp_path: Path, drain: str, status: str
) -> None:
    files = replace(
        files, model=make_model(tmp_path / "long", max_position_embeddings=4096), flags=(*files.flags, *ROOM)
    )
    with serving(files, tmp_path, drain) as server:
        made = server.http.post("/v1/responses", json=BACKGROUND).json()
        server.told(signal.SIGTERM)
        assert server.ended(SOON) == 0
    with serving(files, tmp_path, drain) as server:
        found = server.http.get(f"/v1/responses/{made['id']}").json()
    assert (made["status"], found["status"]) == ("in_progress", status)
    if status == "incomplete":
        assert found["usage"]["output_tokens"] == 3000
    lines = [json.loads(line) for line in (tmp_path / "state" / "log").read_text().splitlines() if line[0] == "{"]
    errors = [line.get("error") for line in lines if line.get("background")]
    assert errors == [None if status == "incomplete" else "shutting_down"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_its_processes_is_one_signal(files: Files, tmp_path: Path, number: signal.Signals) -> None:
    with serving(files, tmp_path, "600") as server:
        with streaming(server) as lines:
            server.all_told(number)
            assert "choices" in last_event(lines)
        assert server.ended(SOON) == 0


@pytest.mark.parametrize("files", ["1"], indirect=True, ids=["one process"])  # of several, an idle one just ends
def test_a_probe_hears_that_the_end_has_begun(files: Files, tmp_path: Path) -> None:
    with serving(files, tmp_path, "600") as server, httpx.Client(base_url=server.url) as kept:
        assert kept.get("/health/ready").status_code == 200
        with streaming(server):
            server.told(signal.SIGTERM)
            until_the_door_is_shut(server)
            ready = kept.get("/health/ready")
        assert (ready.status_code, ready.headers["connection"]) == (503, "close")
        assert server.ended(SOON) == 0  # its one client has hung up


def test_what_takes_too_long_is_told_that_the_server_ends(files: Files, tmp_path: Path) -> None:
    with serving(files, tmp_path, "0.1") as server:
        with streaming(server) as lines:
            server.told(signal.SIGTERM)
            assert last_event(lines)["error"]["code"] == "shutting_down"  # type: ignore[index]
        assert server.ended(SOON) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(files: Files, tmp_path: Path, number: signal.Signals) -> None:
    with serving(files, tmp_path, "600") as server:
        with streaming(server) as lines:
            server.told(signal.SIGTERM)
            until_the_door_is_shut(server)
            server.told(number)
            assert last_event(lines)["error"]["code"] == "shutting_down"  # type: ignore[index]
        assert server.ended(SOON) == 0


def test_idle_connections_hold_nothing_up(files: Files, tmp_path: Path) -> None:
    with serving(files, tmp_path, "600") as server:
        idle = [httpx.Client(base_url=server.url) for _ in range(20)]
        assert {client.get("/health").status_code for client in idle} == {200}
        server.told(signal.SIGTERM)
        assert server.ended(SOON) == 0
        for client in idle:
            client.close()
