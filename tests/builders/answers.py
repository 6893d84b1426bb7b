"""Answers of a server, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import httpx

GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "ignore_eos": True}


def events(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of the stream that `body` asks for."""
    answer = http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    parts = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


def both_ways(http: httpx.Client, **asked: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The one choice of a completion, whole, and the parts of it when streamed."""
    body = {**GREEDY, "prompt": "the dog", **asked}
    whole = http.post("/v1/completions", json=body)
    assert whole.status_code == 200, whole.text
    return whole.json()["choices"][0], [e["choices"][0] for e in events(http, "/v1/completions", body)]


def joined(parts: list[dict[str, Any]]) -> str:
    """The text of the parts of a completion."""
    return "".join(part["text"] for part in parts)
