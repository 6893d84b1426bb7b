"""Answers of a server, whole and streamed."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
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


def spelled(token: str) -> bytes:
    """The bytes of a token of a completion's lists."""
    if not token.startswith("bytes:"):
        return token.encode()
    return token.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1")


def offsets(tokens: Sequence[str]) -> list[int]:
    """Where in the text that they make each of them begins, or the character that it goes on with."""
    pieces = [spelled(token) for token in tokens]
    texts = (
        codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(pieces[:at])) for at in range(len(pieces))
    )
    return [len(text) for text in texts]
