"""What a worker answers when the process that has the engine is full, late, dead or gone."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aril.admin_api.catalog import AdapterCatalog
from aril.admin_api.residency import Residency
from aril.core.callers import Caller
from aril.core.errors import ArilError, EngineDead, TooLarge
from aril.engine.aio import AsyncEngine
from aril.server.app import create_app
from aril.server.flights import Bounds, Flights
from aril.server.manners import Manners
from aril.server.workers import wire
from aril.server.workers.desk import Desk
from aril.server.workers.link import Link
from builders.engines import make_engine
from builders.models import make_model
from builders.serving import handed_on

LONG: dict[str, Any] = {"model": "tiny", "prompt": [[5]] * 64, "max_tokens": 400, "ignore_eos": True}
GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/embeddings")
SHORT: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(folder: Path) -> Iterator[AsyncEngine]:
    made = AsyncEngine(make_engine(folder, served_model_name="tiny"))
    yield made
    asyncio.run(made.close())


@contextmanager
def asked(engine: AsyncEngine, bounds: Bounds | None = None) -> Iterator[httpx.Client]:
    """A client of a worker that `engine` stands behind."""
    app = create_app(engine, AdapterCatalog("tiny", Residency(engine)), manners=Manners(flights=Flights(bounds)))
    with handed_on(app, engine) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield http


def test_a_dead_engine_is_a_503_whoever_is_asked(engine: AsyncEngine) -> None:
    with asked(engine) as http:
        assert http.post("/v1/completions", json=SHORT).status_code == 200
        asyncio.run(engine.close())
        for answer in (http.post("/v1/completions", json=SHORT), http.get("/health")):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")


def test_an_answer_that_takes_too_long_ends_with_an_error_event(engine: AsyncEngine) -> None:
    with asked(engine, Bounds(seconds=0.3)) as http:
        lines = http.post("/v1/completions", json={**LONG, "stream": True}).text.split("\n\n")
        assert json.loads(lines[-3].removeprefix("data: "))["error"]["code"] == "timeout"


def test_the_queue_is_one_for_all(engine: AsyncEngine) -> None:
    with asked(engine, Bounds(choices=1)) as http:
        with http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as stream:
            lines = stream.iter_lines()  # held: the stream ends with it
            next(lines)
            full = http.post("/v1/completions", json=SHORT)
        assert (full.status_code, full.json()["error"]["code"], full.headers["retry-after"]) == (503, "queue_full", "1")


def test_a_full_queue_is_told_before_the_body_comes(engine: AsyncEngine) -> None:
    running = {**LONG, "stream": True}
    with asked(engine, Bounds(choices=1)) as http, http.stream("POST", "/v1/completions", json=running) as stream:
        lines = stream.iter_lines()  # held: the stream ends with it
        next(lines)
        for path in GENERATING:
            full = told(http, f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\n")
            assert full.startswith("HTTP/1.1 503 ")
            assert "queue_full" in full
            assert "retry-after: 1" in full


@pytest.mark.parametrize("target", ["*", "http://elsewhere/v1/files", "v1/files", "?a=b"])
def test_what_is_no_path_is_a_404(engine: AsyncEngine, target: str) -> None:
    with asked(engine) as http:
        found = told(http, f"OPTIONS {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert found.startswith("HTTP/1.1 404 ")
    assert "not_found" in found


def test_of_two_lengths_of_a_body_its_chunks_hold(engine: AsyncEngine) -> None:
    lines = (
        "POST /v1/responses HTTP/1.1",
        "Host: x",
        "Connection: close",
        "Content-Length: 3",
        "Transfer-Encoding: chunked",
    )
    with asked(engine) as http:
        found = told(http, "\r\n".join((*lines, "", "2", "{}", "0", "", "")))
    assert found.startswith("HTTP/1.1 400 ")
    assert "model: this field is required" in found


def told(http: httpx.Client, request: str) -> str:
    """All that is answered to those bytes."""
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=60) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


async def _left_alone(last_word: bytes) -> None:
    ours, theirs = [await asyncio.open_connection(sock=each) for each in socket.socketpair()]
    link = Link(*ours, Flights())
    listening = asyncio.create_task(link.listen(lambda _: None))
    question = asyncio.create_task(link.verify(None, ""))
    await theirs[0].read(1)  # it has been asked
    theirs[1].write(last_word)
    theirs[1].close()
    await listening
    for waits in (question, link.verify(None, "")):
        with pytest.raises(EngineDead):
            await waits
    ours[1].close()


@pytest.mark.parametrize("last_word", [b"", b"\0\0\0\1?", b"\xff\xff\xff\xff"])
def test_who_waits_for_a_process_that_is_gone_or_not_understood_is_told(last_word: bytes) -> None:
    asyncio.run(_left_alone(last_word))


class Keys:
    """Callers with names that no message can hold, and others. Implements server.auth.KeyVerifier."""

    async def verify(self, header: str | None, origin: str, query: Iterable[tuple[str, str]] = ()) -> Caller:
        """Whoever it is."""
        return Caller(name="\udc80" if header is None else header)


async def _ask_both(engine: AsyncEngine) -> None:
    app = create_app(engine, AdapterCatalog("tiny", Residency(engine)), keys=Keys())
    ours, theirs = [await asyncio.open_connection(sock=each) for each in socket.socketpair()]
    face = app.state.face
    desk = Desk(face.keys, face.catalog, face.runs, wire.Stop())  # type: ignore[arg-type]  # any first word will do
    serving = asyncio.create_task(desk.serve("0", *theirs, lambda _: None))
    link = Link(*ours, Flights())
    listening = asyncio.create_task(link.listen(lambda _: None))
    bad, good = await asyncio.gather(link.verify(None, ""), link.verify("a", ""), return_exceptions=True)
    assert isinstance(bad, ArilError)
    assert isinstance(good, Caller)
    ours[1].close()
    await asyncio.gather(serving, listening)


def test_an_answer_that_cannot_be_sent_costs_the_others_nothing(engine: AsyncEngine) -> None:
    asyncio.run(_ask_both(engine))


def test_what_is_too_long_for_a_frame_is_refused_to_who_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LONGEST", 8)
    with pytest.raises(TooLarge, match="8 can"):
        wire.frame([wire.Count("/v1/completions", "200")])
