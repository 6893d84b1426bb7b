"""A stream says what the whole answer says, byte for byte, for 200 prompts that make the model write odd text.

The model is random and its tokens are bytes and pieces of characters: at temperature 1 half of what it writes is no
UTF-8, and the other half is of many scripts.
"""

from __future__ import annotations

import codecs
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from builders.answers import events

SCRAPS = (
    "\U0001f44b\U0001f3fd",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1eb\U0001f1f7",
    "\u4f60\u597d\u4e16\u754c",
    "\u3053\u3093\u306b\u3061\u306f",
    "\ud55c\uad6d\uc5b4",
    "e\u0301a\u0308o\u0302",
    "\u0915\u094d\u0937\u093f",
    "\u0645\u0631\u062d\u0628\u0627",
    "z\u0351\u036b\u0343a\u0363",
    "na\u00efve caf\u00e9",
    "\U0001f642\U0001f30d",
)
PROMPTS = [f"{SCRAPS[at % 12]} {SCRAPS[at // 12 % 12]}{at} {SCRAPS[at * 7 % 12]}" for at in range(200)]
DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 11, "ignore_eos": True, "max_tokens": 24}
STOPS = ["\u4f60\u597d", " the", "\U0001f642", "e s"]  # each lies across tokens of this tokenizer at times
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stop strings": {"stop": ["a", "\ufffd\ufffd", "de", "o "]},
    "stop strings kept": {"stop": [*STOPS, "\u0438"], "include_stop_str_in_output": True},
    "special tokens": {"skip_special_tokens": False},
    "scores": {"logprobs": 2, "echo": True, "max_tokens": 12},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_streams_say_what_whole_answers_say(http: httpx.Client, kind: dict[str, Any]) -> None:
    body = {"model": "tiny", "prompt": PROMPTS, "return_token_ids": True, **DRAWN, **kind}
    whole = http.post("/v1/completions", json=body).json()["choices"]
    streamed: list[list[dict[str, Any]]] = [[] for _ in PROMPTS]
    for event in events(http, "/v1/completions", body):
        streamed[event["choices"][0]["index"]].append(event["choices"][0])
    for choice, parts in zip(whole, streamed, strict=True):
        assert "".join(part["text"] for part in parts).encode() == choice["text"].encode()
        assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
        assert [parts[-1][name] for name in ("finish_reason", "stop_reason")] == [
            choice[name] for name in ("finish_reason", "stop_reason")
        ]
        if "logprobs" in kind:
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert [one for part in parts for one in part["logprobs"][name]] == choice["logprobs"][name]
    if "stop" in kind:
        assert {choice["finish_reason"] for choice in whole} == {"stop", "length"}


def test_tokens_of_chats_join_to_their_text_whole_and_streamed(http: httpx.Client) -> None:
    more = {"logprobs": True, "skip_special_tokens": False, "model": "green", **DRAWN, "max_tokens": 12}
    path = "/v1/chat/completions"

    def check(prompt: str) -> str:
        body = {**more, "messages": [{"role": "user", "content": prompt}]}
        choice = http.post(path, json=body).json()["choices"][0]
        choices = [event["choices"][0] for event in events(http, path, body)]
        text = "".join(one["delta"].get("content", "") for one in choices)
        content = [item for one in choices if one["logprobs"] for item in one["logprobs"]["content"]]
        assert text.encode() == choice["message"]["content"].encode()
        assert content == choice["logprobs"]["content"]
        spelled = b"".join(bytes(item["bytes"]) for item in content)
        assert codecs.getincrementaldecoder("utf-8")("replace").decode(spelled) == text
        return text

    with ThreadPoolExecutor(16) as threads:
        texts = list(threads.map(check, PROMPTS))
    assert sum("\ufffd" in text for text in texts) > 20
    assert sum(any(ord(char) > 0x2FF and char != "\ufffd" for char in text) for text in texts) > 20
