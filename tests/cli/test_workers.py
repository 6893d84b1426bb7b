"""`aril serve --api-server-count 2`: two processes answer HTTP as one server, and either may die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from builders.commands import SMALL, Files
from builders.processes import ADMIN_KEY, Running, started
from openai import OpenAI

FLAGS = (*SMALL, "--served-model-name", "tiny", "--api-server-count", "2")
LIMIT = 60.0  # seconds, on a machine that is busy with other things
CONNECTIONS = 24
ESTABLISHED = "01"  # in /proc/net/tcp
GREEDY: Any = {"temperature": 0, "max_tokens": 8, "extra_body": {"ignore_eos": True}}
MESSAGES: Any = [{"role": "user", "content": "What is an aril?"}]
# Some seconds of work on any machine.
LONG = {"model": "tiny", "prompt": [[5 + at % 100] for at in range(96)], "max_tokens": 100, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With an adapter that came in over HTTP; nobody ends its processes."""
    with started(files.model, tmp_path_factory.mktemp("workers") / "state", FLAGS) as found:
        assert found.upload("red", files.adapter).json()["state"] == "ready"
        yield found


@contextmanager
def client(server: Running, key: str = ADMIN_KEY) -> Iterator[OpenAI]:
    """OpenAI's client on a connection of its own."""
    with OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as made:
        yield made


def at_once(ask: Callable[[int], Any], count: int = CONNECTIONS) -> list[Any]:
    """What `ask` says to so many callers that come together."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(ask, range(count)))


def status(server: Running, key: str) -> int:
    """Of one short request on a connection of its own."""
    headers = {"Authorization": f"Bearer {key}"}
    body = {"model": "red", "prompt": "a", "max_tokens": 1}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=LIMIT).status_code


def until(holds: Callable[[], bool], what: str) -> None:
    """`holds` does so soon."""
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_idle(server: Running) -> bool:
    ready = server.http.get("/ready").json()
    return (ready["running"], ready["waiting"]) == (0, 0)


def lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_whole_streamed_and_embedded_answers_are_the_same_on_every_connection(server: Running) -> None:
    def ask(at: int) -> tuple[str, str, str, list[float]]:
        model = ("tiny", "red")[at % 2]
        with client(server) as asked:
            whole = asked.chat.completions.create(model=model, messages=MESSAGES, **GREEDY)
            stream = asked.chat.completions.create(model=model, messages=MESSAGES, stream=True, **GREEDY)
            streamed = "".join(event.choices[0].delta.content or "" for event in stream)
            vector = asked.embeddings.create(model=model, input="an aril").data[0].embedding
            return model, whole.choices[0].message.content or "", streamed, vector

    before = server.metric("aril_worker_answers_total")
    answers = at_once(ask)
    of_model = {model: next(answer for answer in answers if answer[0] == model) for model in ("tiny", "red")}
    assert of_model["tiny"][1:] != of_model["red"][1:]
    for model, whole, streamed, vector in answers:
        assert whole == streamed == of_model[model][1]
        assert vector == pytest.approx(of_model[model][3], abs=1e-5)
    after = server.metric("aril_worker_answers_total")
    assert len(after) == 2
    assert all(count > before.get(worker, 0) for worker, count in after.items())  # both have answered


def test_metrics_tell_the_answers_of_all_processes(server: Running) -> None:
    name = 'aril_http_answers_total{route="/v1/completions",status="200"}'
    before = sum(server.metric(name).values())
    assert set(at_once(lambda _: status(server, ADMIN_KEY))) == {200}
    assert sum(server.metric(name).values()) - before == CONNECTIONS


def test_what_one_takes_in_and_withdraws_is_so_for_both(server: Running, files: Files) -> None:
    def found(_: int) -> bool:
        with client(server) as asked:
            return "green" in [model.id for model in asked.models.list()]

    assert server.upload("green", files.adapter).json()["state"] == "ready"
    assert all(at_once(found))
    assert server.http.delete("/admin/v1/adapters/green").is_success
    assert not any(at_once(found))


def test_a_revoked_key_opens_neither(server: Running) -> None:
    key = server.http.post("/admin/v1/keys", json={"name": "k"}).json()
    assert set(at_once(lambda _: status(server, key["key"]))) == {200}
    assert server.http.post(f"/admin/v1/keys/{key['id']}/revoke").is_success
    assert set(at_once(lambda _: status(server, key["key"]))) == {401}


def test_a_limit_holds_for_both_together(server: Running) -> None:
    key = server.http.post("/admin/v1/keys", json={"name": "k", "requests_per_minute": 5}).json()["key"]
    found = at_once(lambda _: status(server, key))
    assert (found.count(200), found.count(429)) == (5, CONNECTIONS - 5)


def test_the_registry_hears_where_a_caller_is(server: Running) -> None:
    server.http.post("/admin/v1/keys", json={"name": "from-here"})
    [line, *_] = server.http.get("/admin/v1/audit", params={"limit": 1}).json()["data"]
    assert line["origin"] == "127.0.0.1"


def test_a_client_that_hangs_up_ends_its_requests_in_the_engine(server: Running) -> None:
    until(lambda: is_idle(server), "others are still answered")
    longer = {**LONG, "prompt": LONG["prompt"] * 10, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=longer) as answer:
        lines = answer.iter_lines()  # held: the stream ends with it
        next(lines)
        assert not is_idle(server)
    until(lambda: is_idle(server), "the engine goes on for nobody")


def test_no_process_that_answers_http_holds_the_model(server: Running) -> None:
    workers = server.children()
    assert len(workers) == 2
    for pid in workers:
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def stream_to_its_end(server: Running) -> bool:
    """Whether a long answer came whole."""
    try:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        asked = httpx.stream(
            "POST", f"{server.url}/v1/completions", json={**LONG, "stream": True}, headers=headers, timeout=LIMIT
        )
        with asked as answer:
            return list(answer.iter_lines())[-2] == "data: [DONE]"
    except httpx.TransportError:
        return False


def streams_to_each(server: Running, pool: ThreadPoolExecutor) -> list[Future[bool]]:
    """Streams that have begun, one after another until every process has some."""
    begun = 'aril_http_answers_total{route="/v1/completions"'
    server.http.get("/ready")  # its own connection is there from now on
    before, streams = {pid: num_connections(server, pid) for pid in server.children()}, list[Future[bool]]()
    while any(num_connections(server, pid) == before[pid] for pid in before):
        assert len(streams) < CONNECTIONS, "one process has them all"
        streams.append(pool.submit(stream_to_its_end, server))
        until(lambda: sum(server.metric(begun).values()) == len(streams), "not begun")
    return streams


def num_connections(server: Running, pid: int) -> int:
    """To the server's port, that a process of it holds."""
    port = f":{httpx.URL(server.url).port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    theirs = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(port) and row[3] == ESTABLISHED}
    return sum(os.readlink(file) in theirs for file in Path(f"/proc/{pid}/fd").iterdir())


def test_a_process_that_is_killed_takes_its_own_connections_along_and_comes_back(files: Files, tmp_path: Path) -> None:
    with started(files.model, tmp_path / "state", FLAGS) as server, ThreadPoolExecutor(CONNECTIONS) as pool:
        first, second = server.children()
        streams = streams_to_each(server, pool)
        server.http.close()  # its connection may be one of those
        os.kill(first, signal.SIGKILL)
        whole = [stream.result() for stream in streams]
        assert {True, False} == set(whole)
        server.http = httpx.Client(base_url=server.url, timeout=LIMIT, headers={"Authorization": f"Bearer {ADMIN_KEY}"})
        until(lambda: len(server.children()) == 2, "it is not started again")
        until(lambda: is_idle(server), "the engine goes on for nobody")
        assert second in server.children()
        assert first not in server.children()
        assert all(at_once(lambda _: server_answers(server)))
        workers = server.children()
        server.told(signal.SIGTERM)
        assert server.ended(LIMIT) == 0
        assert not any(map(lives, workers))


def server_answers(server: Running) -> bool:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=LIMIT).is_success


def test_no_process_outlives_the_one_with_the_engine(files: Files, tmp_path: Path) -> None:
    with started(files.model, tmp_path / "state", FLAGS) as server:
        workers = server.children()
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not any(map(lives, workers)), "they live on")


def test_processes_that_die_again_and_again_end_the_server(files: Files, tmp_path: Path) -> None:
    with started(files.model, tmp_path / "state", FLAGS) as server:
        killed: set[int] = set()

        def kill_one() -> bool:
            for pid in set(server.children()) - killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            return len(killed) >= 5

        until(kill_one, "they are not started again")
        assert server.ended(LIMIT) == 1
    assert "have died within" in (tmp_path / "state" / "log").read_text()
