"""POST /v1/chat/completions, as OpenAI's client sees it."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest
from openai import OpenAI

MESSAGES: Any = [{"role": "user", "content": "what is an aril?"}]
GREEDY: Any = {"messages": MESSAGES, "temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}


def test_an_answer_has_the_shape_that_openai_promises(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", **GREEDY)
    choice = answer.choices[0]
    assert (answer.object, answer.model, choice.index) == ("chat.completion", "tiny", 0)
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


@pytest.mark.parametrize("model", ["tiny", "red", "org/blue"])
def test_a_stream_says_the_same_as_the_whole_answer(client: OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, **GREEDY)
    chunks = list(client.chat.completions.create(model=model, stream=True, **GREEDY))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]


def test_base_and_adapters_answer_differently(client: OpenAI) -> None:
    names = ["tiny", "red", "green", "org/blue"]
    answers = {client.chat.completions.create(model=n, **GREEDY).choices[0].message.content for n in names}
    assert len(answers) == len(names)


def test_usage_comes_last_in_a_stream_and_counts_cached_tokens(client: OpenAI) -> None:
    long: Any = [{"role": "user", "content": "the dog sleeps " * 10}]
    options: Any = {"include_usage": True}
    for _ in range(2):
        chunks = list(
            client.chat.completions.create(
                model="tiny", messages=long, max_tokens=3, stream=True, stream_options=options, temperature=0
            )
        )
    usage = chunks[-1].usage
    assert chunks[-1].choices == []
    assert all(c.usage is None for c in chunks[:-1])
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens  # the second time


def test_n_choices_come_back_in_order(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="green", messages=MESSAGES, n=3, max_tokens=5, seed=1)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 15


def test_n_streamed_choices_each_begin_and_end_once(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="tiny", messages=MESSAGES, n=2, max_tokens=4, stream=True))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert sorted(c.index for c in choices if c.delta.role) == [0, 1]
    assert sorted(c.index for c in choices if c.finish_reason) == [0, 1]


def test_logprobs_name_each_token_and_its_rivals(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="red", logprobs=True, top_logprobs=3, **GREEDY)
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert len(content) == 12
    for item in content:
        assert len(item.top_logprobs) == 3
        assert item.top_logprobs[0].logprob == item.logprob  # greedy: the most likely one
        assert bytes(item.bytes or []).decode("utf-8", "replace") == item.token
        assert math.exp(item.logprob) <= 1.0
    said = b"".join(bytes(item.bytes or []) for item in content)
    assert said.decode("utf-8", "replace") == answer.choices[0].message.content


def test_streamed_logprobs_are_those_of_the_whole_answer(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="red", logprobs=True, **GREEDY)
    chunks = client.chat.completions.create(model="red", logprobs=True, stream=True, **GREEDY)
    streamed = [i.token for c in chunks if c.choices[0].logprobs for i in c.choices[0].logprobs.content or []]
    assert whole.choices[0].logprobs is not None
    assert streamed == [item.token for item in whole.choices[0].logprobs.content or []]


def test_a_stop_string_ends_the_answer_and_is_named(client: OpenAI) -> None:
    text = client.chat.completions.create(model="tiny", **GREEDY).choices[0].message.content or ""
    stop = text[4:6]
    choice = client.chat.completions.create(model="tiny", stop=[stop], **GREEDY).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == text[: text.index(stop)]
    assert choice.model_extra is not None
    assert choice.model_extra["stop_reason"] == stop


def test_text_parts_are_one_message(client: OpenAI) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "what is"}, {"type": "text", "text": "it?"}]}]
    plain: Any = [{"role": "user", "content": "what is\nit?"}]
    more: Any = {"model": "tiny", "temperature": 0, "max_tokens": 6}
    first, second = (client.chat.completions.create(messages=m, **more) for m in (parts, plain))
    assert first.choices[0].message.content == second.choices[0].message.content


def test_without_max_tokens_the_answer_may_fill_the_context(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.total_tokens == 256


def test_token_ids_are_returned_on_request(client: OpenAI, http: httpx.Client) -> None:
    more = {"ignore_eos": True, "return_token_ids": True}
    answer = client.chat.completions.create(model="tiny", **{**GREEDY, "extra_body": more})
    assert answer.model_extra is not None
    prompt = http.post("/tokenize", json={"messages": MESSAGES}).json()
    assert answer.model_extra["prompt_token_ids"] == prompt["tokens"]
    assert answer.choices[0].model_extra is not None
    assert len(answer.choices[0].model_extra["token_ids"]) == 12


def test_a_final_message_can_be_continued(http: httpx.Client) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "It is a"}]
    fields = {"messages": messages, "continue_final_message": True}
    rendered = http.post("/tokenize", json=fields).json()["tokens"]
    text = http.post("/detokenize", json={"tokens": rendered}).json()["prompt"]
    assert text.endswith("It is a")
    assert http.post("/v1/chat/completions", json={"model": "tiny", "max_tokens": 2, **fields}).status_code == 200


def test_prompt_logprobs_are_vllms(http: httpx.Client) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 1, "prompt_logprobs": 2}
    answer = http.post("/v1/chat/completions", json=body).json()
    first, *rest = answer["prompt_logprobs"]
    assert first is None
    assert len(rest) == answer["usage"]["prompt_tokens"] - 1
    assert all(2 <= len(entry) <= 3 for entry in rest)
    assert all({"logprob", "rank", "decoded_token"} == set(e) for entry in rest for e in entry.values())
