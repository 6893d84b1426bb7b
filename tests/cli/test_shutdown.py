"""How `aril serve` ends: what runs goes on for a while, nothing new begins, and nobody waits for idle connections."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from builders.commands import SMALL, Files
from builders.models import make_model
from builders.processes import Running, started

SOON = 20.0  # seconds, on a machine that is busy with other things
# Some seconds of work on any machine.
LONG: dict[str, Any] = {"model": "tiny", "prompt": [[5 + at % 100] for at in range(512)], "max_tokens": 60}
LONG |= {"temperature": 0, "ignore_eos": True, "stream": True}
SHORTER = {**LONG, "prompt": LONG["prompt"][:128]}  # for who waits for its end
NEW = {"model": "tiny", "prompt": "a"}
RESPONSE = {"model": "tiny", "input": "a", "ignore_eos": True}
ENDLESS, SOME = {"max_output_tokens": 3000}, {"max_output_tokens": 1000}
SECOND = {"1": signal.SIGTERM, "2": signal.SIGINT}  # by the number of processes: either may come after SIGTERM
ROOM = ("--max-model-len", "4096", "--kv-cache-memory", "16MiB")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can go on for thousands of tokens."""
    return make_model(tmp_path_factory.mktemp("long"), max_position_embeddings=4096)


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "workers"])
def files(files: Files, long: Path, request: pytest.FixtureRequest) -> Files:
    """For servers that answer HTTP in so many processes."""
    return replace(files, model=long, flags=(*ROOM, "--api-server-count", request.param))


@contextmanager
def serving(files: Files, state: Path, drain: str) -> Iterator[Running]:
    flags = [*SMALL, *files.flags, "--served-model-name", "tiny", "--drain-timeout", drain]
    with started(files.model, state, flags) as server:
        yield server


@contextmanager
def streaming(server: Running, path: str, asked: dict[str, Any]) -> Iterator[Iterator[str]]:
    """The lines of a stream that has begun."""
    with server.http.stream("POST", path, json=asked) as answer:
        lines = answer.iter_lines()
        assert next(lines)
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
    """Clients with connections that have been answered: enough that every process has some.

    They ask what each process answers by itself, and whole: whoever has read the answer knows that nothing runs for it
    any more. What is handed on runs until the process that took it has hung up on the other.
    """
    with ExitStack() as stack:
        kept = httpx.Limits(keepalive_expiry=None)
        made = (httpx.Client(base_url=server.url, timeout=60, limits=kept) for _ in range(24))
        clients = [stack.enter_context(client) for client in made]
        with ThreadPoolExecutor(len(clients)) as pool:
            assert set(pool.map(lambda client: client.get("/v1/models").status_code, clients)) == {200}
        yield clients


def until_the_door_is_shut(server: Running) -> None:
    """Returns when no new connection is taken."""
    with suppress(httpx.NetworkError):
        while True:
            httpx.get(f"{server.url}/health", timeout=60)


def last_event(lines: Iterator[str]) -> dict[str, Any]:
    """The event before [DONE]."""
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert found[-1] == "[DONE]"
    event: dict[str, Any] = json.loads(found[-2])
    return event


def begin_in_the_background(server: Running, length: dict[str, int]) -> str:
    """The path of a response that runs though nobody waits for it."""
    made = server.http.post("/v1/responses", json={**RESPONSE, **length, "background": True}).json()
    assert made["status"] == "in_progress"
    return f"/v1/responses/{made['id']}"


@dataclass(frozen=True, slots=True)
class Heard:
    """By the clients of a server that ended as the last of them was answered."""

    refusals: list[httpx.Response]  # of new requests, on connections that were open
    probes: list[httpx.Response]  # on such connections too
    last: dict[str, Any]  # event of a stream that ran
    answer: bytes  # to a request whose body came last


@pytest.fixture(scope="module")
def heard(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Heard:
    """One signal to all processes, as service managers send it; one of those who were half asked hangs up."""
    with serving(files, tmp_path_factory.mktemp("heard") / "state", "600") as server:
        with idle(server) as asking, idle(server) as probing, half_asked(server) as answered:
            with half_asked(server), streaming(server, "/v1/completions", SHORTER) as lines:
                server.all_told(signal.SIGTERM)
                until_the_door_is_shut(server)
                refusals = [client.post("/v1/completions", json=NEW) for client in asking]
                probes = [client.get("/health/ready") for client in probing]
                last = last_event(lines)
            answer = answered()
        assert server.ended(SOON) == 0
    return Heard(refusals, probes, last, answer)


def test_what_runs_ends_well_and_nothing_new_begins(heard: Heard) -> None:
    assert "choices" in heard.last
    assert heard.answer.startswith(b"HTTP/1.1 200 ")
    for refusal in heard.refusals:
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "shutting_down")
        assert refusal.headers["connection"] == "close"


def test_a_probe_hears_that_the_end_has_begun(heard: Heard) -> None:
    assert {(probe.status_code, probe.headers["connection"]) for probe in heard.probes} == {(503, "close")}


def test_a_second_signal_ends_it_at_once(files: Files, tmp_path: Path) -> None:
    with serving(files, tmp_path / "state", "600") as server:
        with streaming(server, "/v1/completions", LONG) as lines:
            server.told(signal.SIGTERM)
            until_the_door_is_shut(server)
            server.told(SECOND[files.flags[-1]])
            assert last_event(lines)["error"]["code"] == "shutting_down"
        assert server.ended(SOON) == 0
    said = (tmp_path / "state" / "log").read_text()
    assert [said.count(words) for words in ("seconds=600.0", "cut_short")] == [1, 1]
    assert "cut_short requests=1 by='another signal'" in said


@dataclass(frozen=True, slots=True)
class Life:
    """Of a server, whose state the next life goes on with."""

    state: Path
    log: str
    last: dict[str, Any]  # event of its stream, or what was found of the last life's response
    begun: str = ""  # the path of a response that ran in the background as it was told to end


@pytest.fixture(scope="module")
def cut(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Life:
    """A stream, a response whose client waits, and one in the background, each of which would go on for long."""
    state = tmp_path_factory.mktemp("lives") / "state"
    with serving(files, state, "0.1") as server:
        begun = begin_in_the_background(server, ENDLESS)
        with streaming(server, "/v1/responses", {**RESPONSE, **ENDLESS, "stream": True}):
            with streaming(server, "/v1/completions", LONG) as lines:
                server.told(signal.SIGTERM)
                last = last_event(lines)
            assert server.ended(SOON) == 0
    return Life(state, (state / "log").read_text(), last, begun)


@pytest.fixture(scope="module")
def waited_for(files: Files, cut: Life) -> Life:
    """A response in the background, and Ctrl-C, which all processes hear of."""
    with serving(files, cut.state, "600") as server:
        last = server.http.get(cut.begun).json()
        begun = begin_in_the_background(server, SOME)
        server.all_told(signal.SIGINT)
        assert server.ended(SOON) == 0
    return Life(cut.state, (cut.state / "log").read_text().removeprefix(cut.log), last, begun)


@pytest.fixture(scope="module")
def idled(files: Files, waited_for: Life) -> Life:
    """Nothing but clients with nothing to ask."""
    before = (waited_for.state / "log").read_text()
    with serving(files, waited_for.state, "600") as server:
        last = server.http.get(waited_for.begun).json()
        assert server.http.get("/v1/models").is_success  # on the same connection: what was handed on there is over
        with idle(server):
            server.told(signal.SIGTERM)
            assert server.ended(SOON) == 0
    return Life(waited_for.state, (waited_for.state / "log").read_text().removeprefix(before), last)


def ends_in_the_background(life: Life) -> list[str | None]:
    """What the log says of each."""
    lines = [json.loads(line) for line in life.log.splitlines() if line.startswith("{")]
    return [line.get("error") for line in lines if line.get("background")]


def test_what_takes_too_long_is_told_that_the_server_ends(cut: Life, waited_for: Life) -> None:
    assert cut.last["error"]["code"] == "shutting_down"
    assert waited_for.last["status"] == "failed"
    assert ends_in_the_background(cut) == ["shutting_down"]


def test_what_is_handed_on_and_cut_short_is_told_once(cut: Life) -> None:
    told = [line.partition(" cut_short ")[2].split() for line in cut.log.splitlines() if " cut_short " in line]
    assert {by for _, by in told} == {"by=--drain-timeout"}
    assert sum(int(requests.removeprefix("requests=")) for requests, _ in told) == 3


def test_what_is_made_in_the_background_alone_is_waited_for_too(waited_for: Life, idled: Life) -> None:
    assert idled.last["status"] == "incomplete"
    assert idled.last["usage"]["output_tokens"] == SOME["max_output_tokens"]
    assert ends_in_the_background(waited_for) == [None]


def test_idle_connections_hold_nothing_up(idled: Life) -> None:
    assert idled.log.count(" draining ") == 1
