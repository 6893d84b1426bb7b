"""POST /v1/responses, as OpenAI's client sees it."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema
import openai
import pytest
from aril.server.responses.answers import ResponseObject
from openai import OpenAI
from pydantic import BaseModel

ASK = "what is an aril?"
GREEDY: Any = {"input": ASK, "temperature": 0, "max_output_tokens": 12, "extra_body": {"ignore_eos": True}}


def greedy(**fields: Any) -> Any:
    """A request that is always answered alike."""
    return {**GREEDY, "model": "tiny", **fields}


def test_an_answer_has_the_shape_that_openai_promises(client: OpenAI) -> None:
    answer = client.responses.create(**greedy(metadata={"a": "b"}, instructions="Be short."))
    assert answer.id.startswith("resp_")
    assert (answer.object, answer.model, answer.instructions) == ("response", "tiny", "Be short.")
    assert (answer.metadata, answer.store, answer.temperature) == ({"a": "b"}, True, 0)
    [message] = answer.output
    assert message.type == "message"
    assert (message.role, message.status) == ("assistant", "incomplete")
    assert answer.output_text
    assert answer.usage is not None
    assert answer.usage.output_tokens == 12
    assert answer.usage.total_tokens == answer.usage.input_tokens + 12
    assert answer.usage.output_tokens_details.reasoning_tokens == 0


def test_an_answer_that_is_cut_says_so(client: OpenAI) -> None:
    answer = client.responses.create(**greedy())
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.completed_at is None


def test_an_answer_that_ends_by_itself_is_complete(client: OpenAI) -> None:
    answer = client.responses.create(**greedy(extra_body={"structured_outputs": {"choice": ["yes", "no"]}}))
    assert answer.output_text in ("yes", "no")
    assert (answer.status, answer.incomplete_details) == ("completed", None)
    assert answer.completed_at is not None


@pytest.mark.parametrize("model", ["tiny", "red", "org/blue"])
def test_it_says_what_chat_says(client: OpenAI, model: str) -> None:
    messages: Any = [{"role": "system", "content": "Be short."}, {"role": "user", "content": ASK}]
    options: Any = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
    chat = client.chat.completions.create(model=model, messages=messages, **options)
    raw = client.responses.with_raw_response.create(**greedy(model=model, instructions="Be short."))
    answer = raw.parse()
    assert answer.output_text == chat.choices[0].message.content
    assert raw.headers["x-aril-adapter"].startswith(model)
    assert chat.usage is not None
    assert answer.usage is not None
    assert answer.usage.input_tokens == chat.usage.prompt_tokens


def test_the_cached_part_of_the_input_is_counted(client: OpenAI) -> None:
    for _ in range(2):
        answer = client.responses.create(**greedy(input="the dog sleeps " * 10))
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.cached_tokens


def test_items_stand_for_the_messages_of_a_chat(client: OpenAI, http: httpx.Client) -> None:
    items: Any = [
        {"role": "developer", "content": "Be short."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "two", "annotations": []}]},
        {"role": "user", "content": "three"},
    ]
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    rendered = http.post("/tokenize", json={"messages": messages}).json()["count"]
    assert client.responses.input_tokens.count(model="tiny", input=items).input_tokens == rendered


def test_a_conversation_goes_on_from_a_response(client: OpenAI) -> None:
    first = client.responses.create(**greedy(instructions="Be short."))
    second = client.responses.create(**greedy(input="and then?", previous_response_id=first.id))
    spelled: Any = [
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "and then?"},
    ]
    whole = client.responses.create(**greedy(input=spelled))
    assert second.previous_response_id == first.id
    assert second.output_text == whole.output_text
    assert second.usage == whole.usage or second.usage.input_tokens == whole.usage.input_tokens  # type: ignore[union-attr]
    third = client.responses.create(**greedy(input="why?", previous_response_id=second.id))
    client.responses.delete(first.id)
    items = client.responses.input_items.list(third.id, order="asc", limit=2)
    assert len(list(items)) == 5  # it needs no other response


def test_a_response_is_kept_until_it_is_deleted(client: OpenAI) -> None:
    answer = client.responses.create(**greedy())
    assert client.responses.retrieve(answer.id) == answer
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError, match="no response"):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.BadRequestError, match="no response") as told:
        client.responses.create(**greedy(previous_response_id=answer.id))
    assert (told.value.param, told.value.code) == ("previous_response_id", "previous_response_not_found")


def test_a_response_that_is_not_stored_is_not_there(client: OpenAI) -> None:
    answer = client.responses.create(**greedy(store=False))
    assert answer.store is False
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(answer.id)


def test_input_items_come_in_pages(client: OpenAI) -> None:
    items: Any = [{"role": "user", "content": f"word {at}"} for at in range(5)]
    answer = client.responses.create(**greedy(input=items))
    newest = client.responses.input_items.list(answer.id, limit=2)
    assert newest.has_more
    said = [item.content[0].text for item in newest]  # type: ignore[union-attr]
    assert said == ["word 4", "word 3", "word 2", "word 1", "word 0"]
    rest = client.responses.input_items.list(answer.id, order="asc", after=newest.data[0].id)
    assert list(rest) == []
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list(answer.id, after="msg_unknown")


class Animal(BaseModel):
    """What an answer is parsed into."""

    legs: int


def test_an_answer_is_parsed_into_a_model(client: OpenAI) -> None:
    answer = client.responses.parse(model="tiny", input="How many?", text_format=Animal, max_output_tokens=60)
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_schema"
    if answer.status == "completed":
        assert isinstance(answer.output_parsed, Animal)


def test_a_json_object_is_one(client: OpenAI) -> None:
    answer = client.responses.create(
        model="tiny", input="JSON", temperature=0, max_output_tokens=8, text={"format": {"type": "json_object"}}
    )
    assert answer.output_text.startswith("{")


@pytest.mark.parametrize("asked", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}])
def test_logprobs_come_on_request(client: OpenAI, asked: Any) -> None:
    answer = client.responses.create(**greedy(**asked))
    part = answer.output[0].content[0]  # type: ignore[union-attr]
    scores = part.logprobs  # type: ignore[union-attr]
    assert scores is not None
    assert b"".join(bytes(score.bytes) for score in scores).decode("utf-8", "replace") == answer.output_text
    assert [len(score.top_logprobs) for score in scores] == [asked.get("top_logprobs", 0)] * 12


def test_the_oldest_turns_are_left_out_when_asked(client: OpenAI) -> None:
    items: Any = [{"role": "system", "content": "Be short."}]
    items += [{"role": "user", "content": f"{at} the dog sleeps " * 10} for at in range(12)]
    with pytest.raises(openai.BadRequestError) as told:
        client.responses.create(**greedy(input=items))
    assert (told.value.param, told.value.code) == ("input", "context_length_exceeded")
    answer = client.responses.create(**greedy(input=items, truncation="auto"))
    assert answer.usage is not None
    assert 100 < answer.usage.input_tokens <= 256 - 12
    kept: Any = [items[0], *items[-2:]]
    assert client.responses.create(**greedy(input=kept)).usage.input_tokens <= answer.usage.input_tokens  # type: ignore[union-attr]
    assert len(list(client.responses.input_items.list(answer.id, limit=100))) == len(items)


def test_fields_that_nothing_was_done_with_are_listed(client: OpenAI) -> None:
    raw = client.responses.with_raw_response.create(
        **greedy(
            reasoning={"summary": "auto"},
            include=["reasoning.encrypted_content"],
            service_tier="flex",
            extra_body={"ignore_eos": True, "whatever": 1},
        )
    )
    listed = set(raw.headers["x-aril-ignored-fields"].split(","))
    assert listed == {"reasoning.summary", "include.reasoning.encrypted_content", "service_tier", "whatever"}


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": ["a"]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]}, "input[0].call_id"),
    ({"input": [{"type": "reasoning", "content": "a"}]}, "input[0].content"),
    ({"input": [{"type": "reasoning", "content": ["a"]}]}, "input[0].content[0]"),
    ({"input": [{"type": "reasoning", "encrypted_content": "a"}]}, "input[0].encrypted_content"),
    ({"input": 1}, "input"),
    ({"model": "nobody"}, "model"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 1000}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"include": ["everything"]}, "include[0]"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {f"a{at}": "b" for at in range(17)}}, "metadata"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"verbosity": "high"}}, "text.verbosity"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
    ({"truncation": "some"}, "truncation"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"n": 2}, "n"),
    ({"max_tokens": 2}, "max_tokens"),
    ({"background": True, "store": False}, "background"),
    ({"previous_response_id": "resp_\x00"}, "previous_response_id"),
]


@pytest.mark.parametrize(("wrong", "param"), FAULTS, ids=[f"{param}-{at}" for at, (_, param) in enumerate(FAULTS)])
def test_a_fault_in_a_request_is_named(http: httpx.Client, wrong: dict[str, Any], param: str) -> None:
    answer = http.post("/v1/responses", json={"model": "tiny", "input": ASK, "max_output_tokens": 2, **wrong})
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param, answer.text


def test_numbers_and_names_in_a_message_are_the_callers(http: httpx.Client) -> None:
    body = {"model": "tiny", "input": ASK, "max_output_tokens": 1000}
    told = http.post("/v1/responses", json=body).json()["error"]["message"]
    assert "max_output_tokens to at most" in told
    assert "the input" in told
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    body = {
        "model": "tiny",
        "input": ASK,
        "text": {"format": {"type": "json_schema", "name": "a", "strict": True, "schema": schema}},
    }
    error = http.post("/v1/responses", json=body).json()["error"]
    assert error["param"] == "text.format.schema"


@pytest.mark.parametrize("id", ["resp_1", "%00", "x" * 300])
def test_what_is_not_there_is_a_404(http: httpx.Client, id: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        assert http.request(method, f"/v1/responses/{id}{path}").status_code in (400, 404)


def test_answers_are_as_the_openapi_document_says(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()
    told = paths["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    body = {"model": "tiny", "input": ASK, "max_output_tokens": 4, "top_logprobs": 1}
    answer = http.post("/v1/responses", json=body).json()
    jsonschema.validate(answer, {**told, "components": paths["components"]})
    assert set(answer) == set(ResponseObject.model_fields)
