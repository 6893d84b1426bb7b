"""Streams: what is on the wire, many at once, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from server.serving import Served

BODY: dict[str, Any] = {"model": "tiny", "prompt": "the dog", "temperature": 0, "ignore_eos": True}


def payloads(text: str) -> list[dict[str, Any]]:
    """The decoded events of a whole stream, [DONE] left out."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def wait_until_idle(served: Served, seconds: float = 20.0) -> None:
    """Returns when no request runs or waits and every block is free."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status = served.engine.status()
        if status.running == status.waiting == 0 and status.free_blocks == status.total_blocks:
            return
    pytest.fail(f"still busy: {served.engine.status()}")


def test_a_stream_is_server_sent_events(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={**BODY, "stream": True, "max_tokens": 4})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in answer.headers
    assert answer.text.endswith("data: [DONE]\n\n")
    assert len({event["id"] for event in payloads(answer.text)}) == 1


def test_usage_can_stand_on_every_event(http: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**BODY, "stream": True, "max_tokens": 3, "stream_options": options}
    counts = [e["usage"]["completion_tokens"] for e in payloads(http.post("/v1/completions", json=body).text)]
    assert counts == sorted(counts)
    assert counts[-1] == 3


def test_a_fault_before_the_first_token_is_a_plain_error(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={**BODY, "prompt": [10**6], "stream": True})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_blocks(served: Served, path: str, stream: bool) -> None:
    fields = {**BODY, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "n": 4, "stream": stream}
    if path.endswith("chat/completions"):
        del fields["prompt"]
    with httpx.Client(base_url=served.url) as session:
        try:
            with session.stream("POST", path, json=fields, timeout=0.3 if not stream else 20) as answer:
                next(answer.iter_lines())
        except httpx.ReadTimeout:
            pass  # that is how this client goes away while it waits for the whole answer
    wait_until_idle(served)


def test_one_failing_prompt_of_many_ends_the_others(served: Served, http: httpx.Client) -> None:
    body = {**BODY, "prompt": [[5, 6], [10**6], [7, 8]], "max_tokens": 200}
    assert http.post("/v1/completions", json=body).status_code == 400
    wait_until_idle(served)


def test_two_hundred_streams_at_once_each_get_their_own_answer(served: Served) -> None:
    models = ["tiny", "red", "green", "org/blue"]

    async def ask(session: httpx.AsyncClient, model: str) -> str:
        body = {**BODY, "model": model, "max_tokens": 6, "stream": True}
        answer = await session.post("/v1/completions", json=body)
        return "".join(event["choices"][0]["text"] for event in payloads(answer.text))

    async def everybody() -> list[str]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=served.url, timeout=60, limits=limits) as session:
            alone = [await ask(session, model) for model in models]
            together = await asyncio.gather(*(ask(session, models[at % 4]) for at in range(200)))
        assert together == [alone[at % 4] for at in range(200)]
        return together

    assert len(set(asyncio.run(everybody()))) == 4
    wait_until_idle(served)


def test_answers_are_counted_by_route_and_status(http: httpx.Client) -> None:
    http.get("/v1/models/nobody")
    lines = http.get("/metrics").text.splitlines()
    assert any(
        line.startswith('aril_http_answers_total{route="/v1/models/{name:path}",status="404"}') for line in lines
    )
