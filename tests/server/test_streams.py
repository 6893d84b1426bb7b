"""Streams: what is on the wire, many at once, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from aril.bench.client import Client, events
from builders.serving import Served

BODY: dict[str, Any] = {"model": "tiny", "prompt": "the dog", "temperature": 0, "ignore_eos": True}


def payloads(text: str) -> list[dict[str, Any]]:
    """The decoded events of a whole stream, [DONE] left out."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def wait_until_idle(http: httpx.Client, seconds: float = 20.0) -> None:
    """Returns when no request runs or waits and every block is free."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = http.get("/ready").json()
        if found["running"] == found["waiting"] == 0 and found["free_blocks"] == found["total_blocks"]:
            return
    pytest.fail(f"still busy: {found}")


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
def test_a_client_that_goes_away_frees_its_blocks(served: Served, http: httpx.Client, path: str, stream: bool) -> None:
    fields = {**BODY, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "n": 4, "stream": stream}
    if path.endswith("chat/completions"):
        del fields["prompt"]
    with httpx.Client(base_url=served.url) as session:
        try:
            with session.stream("POST", path, json=fields, timeout=0.3 if not stream else 20) as answer:
                next(answer.iter_lines())
        except httpx.ReadTimeout:
            pass  # that is how this client goes away while it waits for the whole answer
    wait_until_idle(http)


def test_one_failing_prompt_of_many_ends_the_others(http: httpx.Client) -> None:
    body = {**BODY, "prompt": [[5, 6], [10**6], [7, 8]], "max_tokens": 200}
    assert http.post("/v1/completions", json=body).status_code == 400
    wait_until_idle(http)


def test_two_hundred_streams_at_once_each_get_their_own_answer(served: Served, http: httpx.Client) -> None:
    models = ["tiny", "red", "green", "org/blue"]
    client = Client.of(served.url)

    async def ask(model: str) -> str:
        body = {**BODY, "model": model, "max_tokens": 6, "stream": True}
        async with aclosing(client.stream("POST", "/v1/completions", body)) as parts:
            return "".join([json.loads(event)["choices"][0]["text"] async for event in events(parts)])

    async def everybody() -> tuple[list[str], list[str]]:
        alone = [await ask(model) for model in models]
        return alone, await asyncio.gather(*(ask(models[at % 4]) for at in range(200)))

    alone, together = asyncio.run(everybody())
    assert len(set(alone)) == 4
    assert together == alone * 50
    wait_until_idle(http)


def test_answers_are_counted_by_route_and_status(http: httpx.Client) -> None:
    http.get("/v1/models/nobody")
    lines = http.get("/metrics").text.splitlines()
    assert any(
        line.startswith('aril_http_answers_total{route="/v1/models/{name:path}",status="404"}') for line in lines
    )
