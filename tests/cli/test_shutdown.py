"""How `aril serve` ends: what runs goes on for a while, nothing new begins, and nobody waits for idle connections."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

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
WAITED_FOR = {"background": False, "stream": True}
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


@contextmanager
def half_asked(server: Running) -> Iterator[Callable[[], bytes]]:
    """A request whose body the server waits for: it runs until the rest is sent, by asking what the answer is."""
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1}).encode()
    lines = ("POST /v1/completions HTTP/1.1", "Host: a", "Connection: close", "Expect: 100-continue")
    head = "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode()
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(head)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 ")

        def answered() -> bytes:
            connection.sendall(body)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))

        yield answered


@contextmanager
def idle(server: Running) -> Iterator[list[httpx.Client]]:
    """Clients with connections that have been answered: enough that every process has some."""
    with ExitStack() as stack:
        kept = httpx.Limits(keepalive_expiry=None)
        made = (httpx.Client(base_url=server.url, timeout=60, limits=kept) for _ in range(24))
        clients = [stack.enter_context(client) for client in made]
        with ThreadPoolExecutor(len(clients)) as pool:
            assert set(pool.map(lambda client: client.get("/health/ready").status_code, clients)) == {200}
        yield clients


def until_the_door_is_shut(server: Running) -> None:
    """Returns when no new connection is taken."""
    with suppress(httpx.NetworkError):
        while True:
            httpx.get(f"{server.url}/health", timeout=60)


def last_event(lines: Iterator[str]) -> dict[str, object]:
    """The event before [DONE]."""
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert found[-1] == "[DONE]"
    event: dict[str, object] = json.loads(found[-2])
    return event


def test_what_runs_ends_well_and_nothing_new_begins(files: Files, tmp_path: Path) -> None:
    with serving(files, tmp_path, "600") as server, idle(server) as kept, half_asked(server) as answered:
        with streaming(server) as lines:
            server.told(signal.SIGTERM)
            until_the_door_is_shut(server)
            for client in kept:
                asked = client.post("/v1/completions", json={"model": "tiny", "prompt": "a"})
                assert (asked.status_code, asked.json()["error"]["code"]) == (503, "shutting_down")
                assert asked.headers["connection"] == "close"
            assert "choices" in last_event(lines)
        assert answered().startswith(b"HTTP/1.1 200 ")
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


def test_a_probe_hears_that_the_end_has_begun(files: Files, tmp_path: Path) -> None:
    with serving(files, tmp_path, "600") as server, idle(server) as kept:
        with half_asked(server):
            server.told(signal.SIGTERM)
            until_the_door_is_shut(server)
            for client in kept:
                ready = client.get("/health/ready")
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
    said = (tmp_path / "state" / "log").read_text()
    assert [said.count(words) for words in ("seconds=600.0", "cut_short")] == [1, 1]
    assert "cut_short requests=1 by='another signal'" in said


def test_what_is_handed_on_and_cut_short_is_told_once(files: Files, tmp_path: Path) -> None:
    files = replace(
        files, model=make_model(tmp_path / "long", max_position_embeddings=4096), flags=(*files.flags, *ROOM)
    )
    asked = {**BACKGROUND, **WAITED_FOR}
    with serving(files, tmp_path, "0.1") as server, server.http.stream("POST", "/v1/responses", json=asked) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("event: ")
        server.told(signal.SIGTERM)
        assert server.ended(SOON) == 0
    told = [line for line in (tmp_path / "state" / "log").read_text().splitlines() if "cut_short" in line]
    assert [line.partition("cut_short ")[2] for line in told] == ["requests=1 by=--drain-timeout"]


def test_idle_connections_hold_nothing_up(files: Files, tmp_path: Path) -> None:
    with serving(files, tmp_path, "600") as server, idle(server):
        server.told(signal.SIGTERM)
        assert server.ended(SOON) == 0
    assert (tmp_path / "state" / "log").read_text().count(" draining ") == 1
