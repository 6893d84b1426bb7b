"""A text of more characters than the context could ever hold is refused before its tokens are known."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from aril.engine.templates import LARGEST

TEXT = "zebra " * 20_000
CHAT = [{"role": "user", "content": TEXT}]
SHORT = {"model": "tiny", "max_tokens": 2, "temperature": 0}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": TEXT}, "prompt"),
        ("/v1/completions", {"prompt": ["a", TEXT], "stream": True}, "prompt"),
        ("/v1/chat/completions", {"messages": CHAT}, "messages"),
        ("/v1/embeddings", {"input": ["a", TEXT]}, "input"),
        ("/v1/responses", {"input": TEXT}, "input"),
        ("/v1/messages", {"messages": CHAT, "max_tokens": 2}, "messages"),
    ],
)
def test_it_is_told_how_many_tokens_it_has_at_least(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = http.post(path, json={"model": "tiny", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, "context_length_exceeded")
    found = re.search(
        r"context length is 256 tokens\D+(\d+) characters, which are (\d+) tokens or more", error["message"]
    )
    assert found is not None, error["message"]
    characters, least = map(int, found.groups())
    assert characters >= len(TEXT)
    assert 256 < least <= http.post("/tokenize", json={"prompt": TEXT}).json()["count"]


def test_where_only_its_end_counts_it_is_cut(http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": TEXT}).json()["tokens"]
    whole = http.post("/v1/completions", json={**SHORT, "prompt": TEXT, "truncate_prompt_tokens": 9})
    end = http.post("/v1/completions", json={**SHORT, "prompt": tokens[-9:]})
    assert whole.json()["choices"] == end.json()["choices"]
    assert whole.json()["usage"]["prompt_tokens"] == 9


def test_what_would_take_seconds_to_cut_is_refused(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={**SHORT, "prompt": "a" * (LARGEST + 1), "truncate_prompt_tokens": 9})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
    assert f"over {LARGEST}" in answer.json()["error"]["message"]


def test_the_oldest_turns_are_left_out_though_nobody_counts_their_tokens(http: httpx.Client) -> None:
    turns = [*CHAT, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    asked = {"model": "tiny", "input": turns, "max_output_tokens": 2, "temperature": 0}
    alone = http.post("/v1/responses", json={**asked, "input": turns[-1:]}).json()
    cut = http.post("/v1/responses", json={**asked, "truncation": "auto"}).json()
    assert cut["usage"]["input_tokens"] == alone["usage"]["input_tokens"]


def test_how_long_it_is_may_be_asked(http: httpx.Client) -> None:
    counted = http.post("/v1/messages/count_tokens", json={"model": "tiny", "messages": CHAT})
    assert counted.json()["input_tokens"] > 256
