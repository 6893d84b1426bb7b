"""Inputs that have broken servers of this kind before: what a text may be cut at, asked for, and made of."""

from __future__ import annotations

import codecs
from typing import Any

import httpx
import pytest
from builders.answers import GREEDY, both_ways, events, joined, offsets, spelled
from openai import OpenAI

DEF = 328  # the token "pomegranate", which stands for "DEF": a stop string lies in its middle
SPECIAL = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
WAVING = "\U0001f44b\U0001f3fd"  # two characters, eight bytes
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(("stop", "left"), [("pome", ""), ("gran", "pome"), ("ate", "pomegran"), ("tepo", "pomegrana")])
def test_a_stop_string_within_a_token_cuts_the_token(http: httpx.Client, stop: str, left: str) -> None:
    whole, parts = both_ways(http, logit_bias={str(DEF): 100}, stop=stop, max_tokens=4)
    assert (whole["text"], whole["finish_reason"], whole["stop_reason"]) == (left, "stop", stop)
    assert (joined(parts), parts[-1]["finish_reason"]) == (left, "stop")


@pytest.mark.parametrize("stop", ["pomegranates", "tepomegranates", "ranate!"])
def test_a_stop_string_that_is_never_completed_is_text_at_the_end(http: httpx.Client, stop: str) -> None:
    whole, parts = both_ways(http, logit_bias={str(DEF): 100}, stop=[stop], max_tokens=2)
    assert (whole["text"], whole["finish_reason"]) == ("pomegranate" * 2, "length")
    assert (joined(parts), parts[-1]["finish_reason"]) == (whole["text"], "length")


@pytest.mark.parametrize("num_tokens", range(1, 9))
def test_a_character_that_is_cut_short_is_left_out(http: httpx.Client, num_tokens: int) -> None:
    whole, parts = both_ways(http, structured_outputs={"choice": [WAVING]}, max_tokens=num_tokens)
    assert "\ufffd" not in whole["text"]
    assert WAVING.startswith(whole["text"])
    assert all("\ufffd" not in part["text"] for part in parts)
    assert joined(parts) == whole["text"]


SPLIT = "the caf\u00e9 \u20ac5 \U0001f642 \u4f60"


def test_tokens_that_share_a_character_are_told_apart(http: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": SPLIT, "echo": True, "logprobs": 0, "max_tokens": 0}
    choice = http.post("/v1/completions", json=body).json()["choices"][0]
    tokens = choice["logprobs"]["tokens"]
    assert "bytes:\\xe2" in tokens
    assert not any("\ufffd" in token for token in tokens)
    assert b"".join(map(spelled, tokens)).decode() == choice["text"] == SPLIT
    assert choice["logprobs"]["text_offset"] == offsets(tokens)


@pytest.mark.parametrize("echo", [False, True])
def test_offsets_are_those_of_the_text(http: httpx.Client, echo: bool) -> None:
    held = {"structured_outputs": {"choice": [WAVING]}, "max_tokens": 20, "logprobs": 2, "echo": echo}
    whole, parts = both_ways(http, **held)
    lists = whole["logprobs"]
    assert lists["tokens"][-1] in SPECIAL  # which is no text
    assert lists["text_offset"] == offsets(lists["tokens"])
    assert lists["text_offset"][-1] == len(whole["text"])
    for name in lists:
        assert [each for part in parts if part["logprobs"] for each in part["logprobs"][name]] == lists[name]


def test_logprobs_alone_show_the_chosen_tokens(client: OpenAI, http: httpx.Client) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5, "temperature": 0, "logprobs": True}
    choice = client.chat.completions.create(**body).choices[0]  # type: ignore[call-overload]
    assert [item.top_logprobs for item in choice.logprobs.content] == [[]] * 5
    spelled = b"".join(bytes(item.bytes) for item in choice.logprobs.content)
    assert codecs.getincrementaldecoder("utf-8")("replace").decode(spelled) == choice.message.content
    streamed = [e["choices"][0]["logprobs"] for e in events(http, "/v1/chat/completions", body)]
    items = [item for part in streamed if part for item in part["content"]]
    assert [item["logprob"] for item in items] == [item.logprob for item in choice.logprobs.content]


def test_a_special_token_among_the_likely_ones_is_named(http: httpx.Client) -> None:
    asked = {"messages": MESSAGES, "max_tokens": 60, "logprobs": True, "top_logprobs": 20}
    content = http.post("/v1/chat/completions", json={**GREEDY, **asked}).json()["choices"][0]["logprobs"]["content"]
    likely = [entry for item in content for entry in item["top_logprobs"]]
    named = [entry for entry in likely if entry["token"] in SPECIAL]
    assert named
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in named)
    lists = both_ways(http, max_tokens=60, logprobs=20)[0]["logprobs"]
    assert any(name in top for top in lists["top_logprobs"] for name in SPECIAL)


def test_a_special_token_that_is_chosen_is_named_and_adds_no_text(http: httpx.Client) -> None:
    whole, parts = both_ways(http, logit_bias={"1": 100}, max_tokens=2, logprobs=1)
    assert (whole["text"], whole["logprobs"]["tokens"]) == ("", ["<|im_start|>"] * 2)
    assert joined(parts) == ""


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_an_echo_with_logprobs_is_streamed_as_it_is_whole(http: httpx.Client, max_tokens: int) -> None:
    whole, parts = both_ways(http, echo=True, logprobs=2, max_tokens=max_tokens)
    assert joined(parts) == whole["text"]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [value for part in parts for value in part["logprobs"][name]] == whole["logprobs"][name]
    said = codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(map(spelled, whole["logprobs"]["tokens"])))
    assert said == whole["text"]


@pytest.mark.parametrize("logprobs", [None, 0, 3])
def test_an_echo_of_no_tokens_is_the_prompt(http: httpx.Client, logprobs: int | None) -> None:
    whole, parts = both_ways(http, echo=True, logprobs=logprobs, max_tokens=0)
    assert (whole["text"], joined(parts), whole["finish_reason"]) == ("the dog", "the dog", "length")


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["a", ""]])
@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_prompt_is_refused_by_name(http: httpx.Client, prompt: Any, stream: bool) -> None:
    answer = http.post("/v1/completions", json={**GREEDY, "prompt": prompt, "stream": stream})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
    assert "empty" in answer.json()["error"]["message"]


CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


@pytest.mark.parametrize(
    "said", [{"content": ""}, {"content": "", "tool_calls": [CALL]}, {"content": None, "tool_calls": [CALL]}]
)
def test_an_assistant_may_have_said_nothing(http: httpx.Client, said: dict[str, Any]) -> None:
    body = {**GREEDY, "messages": [*MESSAGES, {"role": "assistant", **said}, *MESSAGES], "max_tokens": 1}
    assert http.post("/v1/chat/completions", json=body).status_code == 200


def test_an_assistant_that_neither_spoke_nor_called_is_a_fault(http: httpx.Client) -> None:
    body = {**GREEDY, "messages": [*MESSAGES, {"role": "assistant", "content": None}]}
    answer = http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[1].content")


def test_two_choices_at_temperature_0_are_the_same(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], n=2, temperature=0, max_tokens=8
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert len({choice.message.content for choice in answer.choices}) == 1


def test_a_prompt_fills_the_context_up_to_its_last_token(http: httpx.Client) -> None:
    body = {**GREEDY, "prompt": [5] * 255}
    answer = http.post("/v1/completions", json=body).json()
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (1, "length")
    full = http.post("/v1/completions", json={**body, "prompt": [5] * 256})
    assert (full.status_code, full.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "256 tokens" in full.json()["error"]["message"]


def test_more_tokens_at_least_than_at_most_is_a_fault(http: httpx.Client) -> None:
    error = http.post("/v1/completions", json={**GREEDY, "prompt": "a", "min_tokens": 5, "max_tokens": 4}).json()
    assert error["error"]["param"] == "min_tokens"
    assert {"5", "4"} <= set(error["error"]["message"].replace("=", " ").split())


def test_a_prompt_is_cut_to_its_last_tokens_when_asked(http: httpx.Client) -> None:
    asked = {**GREEDY, "max_tokens": 5, "truncate_prompt_tokens": 3, "return_token_ids": True}
    long = http.post("/v1/completions", json={**asked, "prompt": [*range(5, 250), 40, 41, 42] * 3}).json()
    short = http.post("/v1/completions", json={**asked, "prompt": [40, 41, 42]}).json()
    assert (long["choices"], long["usage"]["prompt_tokens"]) == (short["choices"], 3)
    chat = http.post("/v1/chat/completions", json={**asked, "messages": MESSAGES}).json()
    assert len(chat["prompt_token_ids"]) == 3


@pytest.mark.parametrize("keep", [0, -1, 257, True, 1.5])
def test_a_prompt_cannot_be_cut_to_nonsense(http: httpx.Client, keep: Any) -> None:
    answer = http.post("/v1/completions", json={**GREEDY, "prompt": "a", "truncate_prompt_tokens": keep})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "truncate_prompt_tokens")


def test_a_prompt_that_was_cut_is_not_echoed(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={**GREEDY, "prompt": "a", "truncate_prompt_tokens": 1, "echo": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "echo")
