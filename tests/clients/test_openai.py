"""OpenAI's Python client over its calls, as its users write them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from .conftest import Server, make_key
from .forms import GREEDY, HELLO, Seed


def test_models_are_listed_and_looked_up(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "red"]
    assert client.models.retrieve("red").owned_by == "aril"


def test_a_chat_answers(client: OpenAI) -> None:
    answer = client.chat.completions.create(messages=HELLO, **GREEDY)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None


def test_an_adapter_answers_by_its_name(client: OpenAI) -> None:
    def text(model: str) -> str | None:
        return client.chat.completions.create(messages=HELLO, **{**GREEDY, "model": model}).choices[0].message.content

    assert text("red") != text("tiny")


def test_a_stream_brings_the_whole_answer(client: OpenAI) -> None:
    whole = client.chat.completions.create(messages=HELLO, **GREEDY)
    pieces = list(
        client.chat.completions.create(messages=HELLO, stream=True, stream_options={"include_usage": True}, **GREEDY)
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens  # type: ignore[union-attr]


def test_the_stream_helper_puts_the_answer_together(client: OpenAI) -> None:
    held = {"structured_outputs": {"choice": ["a red seed", "a green seed"]}}
    asked: Any = {
        "messages": HELLO,
        "logprobs": True,
        "top_logprobs": 2,
        "extra_body": held,
        **GREEDY,
        "max_tokens": 40,
    }
    whole = client.chat.completions.create(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta", "logprobs.content.done"} <= kinds
    assert final.message.content == whole.message.content
    assert final.logprobs == whole.logprobs


def test_an_answer_is_parsed_into_a_model(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=HELLO, response_format=Seed, max_tokens=200, temperature=1, seed=5
    )
    assert isinstance(answer.choices[0].message.parsed, Seed)


def test_a_streamed_answer_is_parsed_into_a_model(client: OpenAI) -> None:
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 200, "temperature": 1, "seed": 6}
    with client.chat.completions.stream(response_format=Seed, **asked) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Seed)


def test_an_answer_that_was_cut_is_told_from_a_whole_one(client: OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="tiny", messages=HELLO, response_format=Seed, max_tokens=3)


def test_a_text_is_completed(client: OpenAI) -> None:
    answer = client.completions.create(prompt=["The quick", "A pomegranate"], n=2, logprobs=3, echo=True, **GREEDY)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text[:5] for choice in answer.choices] == ["The q", "The q", "A pom", "A pom"]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert "".join(choice.logprobs.tokens or ())[:9] == choice.text[:9]
        assert choice.logprobs.text_offset[0] == 0  # type: ignore[index]


def test_a_text_is_streamed(client: OpenAI) -> None:
    whole = client.completions.create(prompt="The quick", **GREEDY)
    pieces = client.completions.create(prompt="The quick", stream=True, **GREEDY)
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text


def test_vllms_fields_go_through_extra_body(client: OpenAI) -> None:
    extra = {"structured_outputs": {"choice": ["yes", "no"]}, "top_k": 50, "min_p": 0.0}
    answer = client.completions.create(model="tiny", prompt="Is it?", extra_body=extra)
    assert answer.choices[0].text in ("yes", "no")


def test_raw_answers_have_their_headers(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        messages=HELLO, extra_headers={"x-request-id": "mine"}, **GREEDY
    )
    assert raw.headers["x-request-id"] == "mine"
    assert raw.request_id == "mine"
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].message.role == "assistant"


def test_raw_streams_have_their_headers(client: OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(messages=HELLO, stream=True, **GREEDY) as raw:
        assert raw.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in raw.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_many_at_once_each_get_their_own(server: Server) -> None:
    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0) as many:
            each = [many.completions.create(prompt=f"{at} seeds", **GREEDY, echo=True) for at in range(24)]
            return [answer.choices[0].text for answer in await asyncio.gather(*each)]

    assert [text.split()[0] for text in asyncio.run(ask())] == [str(at) for at in range(24)]


def test_a_stream_that_is_left_early_ends_nothing_else(client: OpenAI) -> None:
    with client.chat.completions.create(messages=HELLO, stream=True, model="tiny", max_tokens=2000) as stream:
        next(iter(stream))
    assert client.chat.completions.create(messages=HELLO, **GREEDY).choices


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"presence_penalty": 9}, "presence_penalty"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a" * 20_000}]}, "messages"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_a_wrong_field_is_a_bad_request_that_names_it(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"messages": HELLO, **GREEDY, **fields})
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.code
    assert caught.value.request_id


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(messages=HELLO, model="gpt-4o")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_an_unknown_path_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="a seed")


def test_a_wrong_key_is_an_authentication_error(guarded: Server) -> None:
    with guarded.client(api_key="wrong") as stranger, pytest.raises(openai.AuthenticationError) as caught:
        stranger.models.list()
    assert caught.value.code == "invalid_api_key"


def test_a_key_without_the_scope_is_denied(guarded: Server) -> None:
    key = make_key(guarded, "reader", scopes=["adapters:read"])
    with guarded.client(api_key=key) as reader, pytest.raises(openai.PermissionDeniedError):
        reader.chat.completions.create(messages=HELLO, **GREEDY)


def test_too_many_requests_are_a_rate_limit_error(guarded: Server) -> None:
    key = make_key(guarded, "slow", requests_per_minute=1)
    with guarded.client(api_key=key) as slow:
        first = slow.chat.completions.with_raw_response.create(messages=HELLO, **GREEDY)
        assert first.headers["x-ratelimit-limit-requests"] == "1"
        with pytest.raises(openai.RateLimitError) as caught:
            slow.chat.completions.create(messages=HELLO, **GREEDY)
    assert caught.value.code == "rate_limit_exceeded"
    assert int(caught.value.response.headers["retry-after"]) >= 1


def test_a_client_that_has_no_patience_gives_up(client: OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).completions.create(
            model="tiny", prompt="a", max_tokens=3000, extra_body={"ignore_eos": True}
        )


def test_retries_stop_at_what_they_cannot_mend(server: Server) -> None:
    with server.client(max_retries=2) as patient, pytest.raises(openai.BadRequestError) as caught:
        patient.chat.completions.create(messages=HELLO, model="tiny", temperature=-1)
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_a_body_that_is_no_json_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", content=b'{"model": "tiny",', cast_to=object)
    assert caught.value.code == "invalid_json"


def test_a_schema_holds_at_any_temperature(client: OpenAI) -> None:
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "seed", "strict": True, "schema": Seed.model_json_schema()},
    }
    answer = client.chat.completions.create(
        messages=HELLO, model="tiny", n=8, temperature=2, max_tokens=200, response_format=form
    )
    for choice in answer.choices:
        Seed.model_validate(json.loads(choice.message.content or ""))
