"""What may be held at once, how long one request may take, and what those hear who find no room or take too long."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest
from aril.core.callers import LOCAL
from aril.core.errors import Overloaded, ShuttingDown, TimedOut
from aril.engine.metering import Work
from aril.engine.params import SamplingParams
from aril.engine.request import BACKGROUND, Chunk
from aril.lora.catalog import Resolution
from aril.server.app import create_app
from aril.server.flights import Bounds, Flights, Stream
from aril.server.manners import Manners
from aril.server.sse import EventStream
from builders.serving import Served, listening
from starlette.types import Message

from .test_streams import BODY, payloads, wait_until_idle

# More than a second's work, whatever the machine.
ENDLESS = {**BODY, "prompt": [[5 + at % 100] for at in range(512)], "max_tokens": 240}
TURNED_AWAY = 'aril_requests_turned_away_total{bound="choices"}'
PATHS = ("/v1/completions", "/v1/chat/completions")


def work(*lengths: int, n: int = 1, beams: int | None = None) -> Work:
    """A request with prompts of so many tokens."""
    resolution = Resolution(ref=None, speaker="tiny")
    search: dict[str, Any] = {} if beams is None else {"use_beam_search": True, "best_of": beams, "temperature": 0.0}
    each = [SamplingParams(n=n, **search)] * len(lengths)
    return Work(caller=LOCAL, resolution=resolution, prompts=[[1] * length for length in lengths], params=each)


def news(prompt_at: int, index: int = 0, *, last: bool = False) -> tuple[int, Chunk]:
    return prompt_at, Chunk("r", index, [7], finish_reason="length" if last else None)


async def told(*items: tuple[int, Chunk]) -> Stream:
    for item in items:
        yield item


def test_prompts_and_choices_count_by_what_they_hold() -> None:
    flights = Flights(Bounds(choices=8))
    with flights.begin(work(3, 3, n=3)):
        with pytest.raises(Overloaded, match=r"6 answers are written or wait, 3 more are asked for, .* holds 8"):
            flights.begin(work(3, n=3))
        with flights.begin(work(3, n=2)), pytest.raises(Overloaded):
            flights.check(0)


def test_every_beam_counts_until_the_search_ends() -> None:
    async def live() -> None:
        flights = Flights(Bounds(choices=16))
        with flights.begin(work(3, 3, n=2, beams=8)) as flight:
            with pytest.raises(Overloaded, match="16 answers are written"):
                flights.check(0)
            async for _ in flight.follow(told(news(0, 0, last=True), news(0, 1, last=True))):
                pass
            assert flight.num_choices == 8
            with flights.begin(work(3, n=1, beams=8)), pytest.raises(Overloaded, match="16 answers are written"):
                flights.check(0)
        with flights.begin(work(3, n=16)):
            pass

    asyncio.run(live())


def test_who_comes_alone_is_let_in_whatever_it_asks_for() -> None:
    flights = Flights(Bounds(choices=1, tokens=1))
    for _ in range(2):
        with flights.begin(work(100, 100, n=5)):
            assert flights.num_under_way == 1


def test_tokens_count_until_the_answer_begins() -> None:
    async def live() -> None:
        flights = Flights(Bounds(tokens=10))
        with flights.begin(work(6)) as flight:
            with pytest.raises(Overloaded, match="prompts of 6 tokens wait"):
                flights.begin(work(5))
            async for _ in flight.follow(told(news(0))):
                with flights.begin(work(10)):
                    pass

    asyncio.run(live())


def test_a_choice_that_has_ended_holds_nothing() -> None:
    async def live() -> None:
        flights = Flights(Bounds(choices=2))
        with flights.begin(work(1, 1)) as flight:
            async for _ in flight.follow(told(news(0, last=True))):
                with flights.begin(work(1)):
                    pass

    asyncio.run(live())


def test_work_that_nobody_waits_for_takes_nobodys_place_and_has_all_its_time() -> None:
    async def live() -> None:
        flights = Flights(Bounds(choices=2, seconds=0.001))
        with flights.begin(work(1, n=2), BACKGROUND) as flight:
            with flights.begin(work(1, n=2)):
                assert flights.num_under_way == 2
            with pytest.raises(Overloaded):
                flights.begin(work(1), BACKGROUND)

            assert flight.deadline is None

    asyncio.run(live())


def test_a_reader_hears_at_once_that_it_is_stopped() -> None:
    closed = asyncio.Event()

    async def silent() -> Stream:
        try:
            await asyncio.Event().wait()
            yield news(0)
        finally:
            closed.set()

    async def live() -> None:
        flights = Flights()
        with flights.begin(work(1)) as flight:
            asyncio.get_running_loop().call_soon(flights.stop, ShuttingDown("the end"))
            with pytest.raises(ShuttingDown):
                await anext(flight.follow(silent()))
        assert closed.is_set()
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    asyncio.run(live())


def test_what_a_slow_reader_has_not_read_holds_nothing_any_more() -> None:
    closed = asyncio.Event()

    async def ready() -> Stream:
        try:
            while True:
                yield news(0)
        finally:
            closed.set()

    async def live() -> None:
        flights = Flights()
        with flights.begin(work(1)) as flight:
            stream = flight.follow(ready())
            await anext(stream)
            flights.stop(ShuttingDown("the end"))
            await asyncio.wait_for(closed.wait(), 10)
            with pytest.raises(ShuttingDown):
                await anext(stream)

    asyncio.run(live())


def test_a_reader_that_leaves_is_not_told_of_a_timeout() -> None:
    async def silent() -> Stream:
        await asyncio.Event().wait()
        yield news(0)

    async def live() -> None:
        with Flights(Bounds(seconds=60)).begin(work(1)) as flight:
            reader = asyncio.ensure_future(anext(flight.follow(silent())))
            await asyncio.sleep(0)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            flight.stop(TimedOut("late"))

    asyncio.run(live())


@pytest.fixture(scope="module")
def full() -> Flights:
    """Three choices, and no more."""
    return Flights(Bounds(choices=3))


@pytest.fixture(scope="module")
def narrow(served: Served, full: Flights) -> Iterator[httpx.Client]:
    with (
        listening(create_app(served.engine, served.catalog, manners=Manners(flights=full))) as url,
        httpx.Client(base_url=url) as http,
    ):
        yield http


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_full_server_says_so_at_once_and_when_to_come_back(
    narrow: httpx.Client, full: Flights, path: str, stream: bool
) -> None:
    body: dict[str, Any] = {**BODY, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "stream": stream}
    if path.endswith("chat/completions"):
        del body["prompt"]
    with full.begin(work(1, n=3)):
        answer = narrow.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["content-type"] == "application/json"
    assert narrow.post(path, json=body).status_code == 200


@pytest.mark.parametrize("path", [*PATHS, "/v1/messages", "/v1/embeddings", "/v1/responses"])
def test_a_full_server_reads_no_body(narrow: httpx.Client, full: Flights, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 9\r\n\r\n"
    with full.begin(work(1, n=3)), socket.create_connection((narrow.base_url.host, narrow.base_url.port or 80)) as sent:
        sent.settimeout(60)
        sent.sendall(head.encode())
        answer = b"".join(iter(lambda: sent.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"queue_full" in answer


def test_choices_that_have_no_room_beside_others_are_turned_away_and_counted(
    narrow: httpx.Client, full: Flights
) -> None:
    def counted() -> float:
        lines = narrow.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(TURNED_AWAY))

    before = counted()
    with full.begin(work(1)):
        assert narrow.post("/v1/embeddings", json={"model": "tiny", "input": ["a", "b", "c"]}).status_code == 503
        assert narrow.post("/v1/completions", json={**BODY, "prompt": ["a", "b", "c"]}).status_code == 503
        assert narrow.post("/v1/completions", json={**BODY, "n": 3, "max_tokens": 2}).status_code == 503
        assert narrow.post("/v1/completions", json={**BODY, "n": 2, "max_tokens": 2}).status_code == 200
    assert counted() == before + 3


@pytest.fixture(scope="module")
def hasty(served: Served) -> Iterator[httpx.Client]:
    """A second for each request."""
    app = create_app(served.engine, served.catalog, manners=Manners(flights=Flights(Bounds(seconds=1.0))))
    with listening(app) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield http


def test_a_request_that_takes_too_long_is_a_504_and_leaves_nothing(hasty: httpx.Client) -> None:
    answer = hasty.post("/v1/completions", json=ENDLESS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
    assert "after 1 s" in answer.json()["error"]["message"]
    wait_until_idle(hasty)


def test_a_stream_that_takes_too_long_ends_with_an_error_event() -> None:
    flights, sent = Flights(), list[bytes]()

    async def one_then_silence() -> Stream:
        yield news(0)
        await asyncio.Event().wait()

    async def events() -> AsyncGenerator[bytes, None]:
        with flights.begin(work(1)) as flight:
            async for _ in flight.follow(one_then_silence()):
                yield b"data: {}\n\n"

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        asyncio.get_running_loop().call_soon(flights.stop, TimedOut("too late"))

    asyncio.run(EventStream(events())({"type": "http"}, receive, send))
    assert [event["error"]["code"] for event in payloads(b"".join(sent).decode()) if event] == ["timeout"]


@pytest.mark.parametrize(("root", "path"), [("", "/health"), ("/llm", "/health"), ("/llm", "/llm/health")])
def test_a_probe_is_heard_while_the_server_ends_by_every_path_it_has(served: Served, root: str, path: str) -> None:
    flights = Flights()
    app = create_app(served.engine, served.catalog, manners=Manners(flights=flights, root_path=root))
    with listening(app) as url:
        flights.close()
        assert httpx.get(url + path, timeout=60).status_code == 200
