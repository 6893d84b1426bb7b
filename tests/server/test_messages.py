"""POST /v1/messages, as Anthropic's client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import jsonschema
import pytest
from anthropic import Anthropic
from aril.server.messages.answers import MessageObject
from builders.serving import Served
from openai import OpenAI

HELLO: Any = [{"role": "user", "content": "what is an aril?"}]
EXTRA: Any = {"temperature": 0, "ignore_eos": True}
GREEDY: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "extra_body": EXTRA}
PATH = "/v1/messages"


@pytest.fixture(scope="module")
def claude(served: Served) -> Iterator[Anthropic]:
    """Anthropic's own client."""
    with Anthropic(base_url=served.url, api_key="unused", max_retries=0) as client:
        yield client


def test_a_message_has_the_shape_that_anthropic_promises(claude: Anthropic) -> None:
    answer = claude.messages.create(**GREEDY)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "tiny")
    assert answer.id.startswith("msg_")
    [block] = answer.content
    assert block.type == "text"
    assert block.text
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert answer.usage.output_tokens == 12


@pytest.mark.parametrize("model", ["tiny", "red", "org/blue"])
def test_it_says_what_chat_says(claude: Anthropic, client: OpenAI, model: str) -> None:
    messages: Any = [{"role": "system", "content": "Be\nshort."}, *HELLO]
    chat = client.chat.completions.create(
        model=model, messages=messages, max_tokens=12, temperature=0, extra_body={"ignore_eos": True}
    )
    system: Any = [
        {"type": "text", "text": "Be"},
        {"type": "text", "text": "short.", "cache_control": {"type": "ephemeral"}},
    ]
    raw = claude.messages.with_raw_response.create(**{**GREEDY, "model": model, "system": system})
    assert raw.parse().content[0].text == chat.choices[0].message.content  # type: ignore[union-attr]
    assert raw.headers["x-aril-adapter"].startswith(model)
    assert "x-aril-ignored-fields" not in raw.headers


@pytest.mark.parametrize("model", ["tiny", "red"])
def test_a_stream_says_the_same_as_the_whole_message(claude: Anthropic, model: str) -> None:
    asked = {**GREEDY, "model": model}
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == whole.content[0].text  # type: ignore[union-attr]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == 12


def test_a_stream_tells_the_whole_sequence(http: httpx.Client) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "stream": True, **EXTRA}
    blocks = http.post(PATH, json=body).text.strip().split("\n\n")
    names = [block.split("\n")[0].removeprefix("event: ") for block in blocks]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_stop_sequence_ends_the_message_and_is_named(claude: Anthropic) -> None:
    text = claude.messages.create(**GREEDY).content[0].text  # type: ignore[union-attr]
    answer = claude.messages.create(**{**GREEDY, "stop_sequences": ["never", text[4:6]]})
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", text[4:6])
    assert answer.content[0].text == text[: text.index(text[4:6])]  # type: ignore[union-attr]


def test_a_message_that_ends_by_itself_ends_the_turn(claude: Anthropic) -> None:
    held = {"structured_outputs": {"choice": ["yes", "no"]}}
    answer = claude.messages.create(**{**GREEDY, "extra_body": held})
    assert answer.content[0].text in ("yes", "no")  # type: ignore[union-attr]
    assert answer.stop_reason == "end_turn"


def test_more_than_the_context_holds_may_be_asked_for(claude: Anthropic) -> None:
    answer = claude.messages.create(**{**GREEDY, "max_tokens": 5000})
    assert answer.stop_reason == "model_context_window_exceeded"
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) + answer.usage.output_tokens == 256


def test_cached_tokens_are_counted_apart(claude: Anthropic) -> None:
    asked: Any = {**GREEDY, "messages": [{"role": "user", "content": "the dog sleeps " * 10}]}
    first, second = claude.messages.create(**asked).usage, claude.messages.create(**asked).usage
    assert second.cache_read_input_tokens
    total = [usage.input_tokens + (usage.cache_read_input_tokens or 0) for usage in (first, second)]
    assert total[0] == total[1]


def test_what_the_assistant_has_begun_is_gone_on_with(claude: Anthropic, http: httpx.Client) -> None:
    begun: Any = [*HELLO, {"role": "assistant", "content": "It is a"}]
    counted = claude.messages.count_tokens(model="tiny", messages=begun).input_tokens
    fields = {"messages": begun, "continue_final_message": True}
    assert counted == http.post("/tokenize", json=fields).json()["count"]
    assert claude.messages.create(**{**GREEDY, "messages": begun}).usage.output_tokens == 12


def test_tokens_are_counted_before_they_are_sent(claude: Anthropic) -> None:
    counted = claude.messages.count_tokens(model="tiny", messages=HELLO, system="Be short.").input_tokens
    usage = claude.messages.create(**{**GREEDY, "system": "Be short."}).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    long: Any = [{"role": "user", "content": "the dog sleeps " * 500}]
    assert claude.messages.count_tokens(model="tiny", messages=long).input_tokens > 256


def test_an_answer_is_held_to_a_schema(claude: Anthropic) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"], "additionalProperties": False}
    form: Any = {"format": {"type": "json_schema", "schema": schema}}
    answer = claude.messages.create(**{**GREEDY, "max_tokens": 60, "output_config": form, "extra_body": {}})
    assert answer.content[0].text.lstrip().startswith("{")  # type: ignore[union-attr]


def test_fields_that_nothing_was_done_with_are_listed(http: httpx.Client) -> None:
    result = {**RESULT, "is_error": True}
    body = {
        "model": "tiny",
        "max_tokens": 2,
        "messages": [*HELLO, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [result]}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "service_tier": "auto",
        "metadata": {"user_id": "u", "team": "t"},
    }
    answer = http.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    listed = set(answer.headers["x-aril-ignored-fields"].split(","))
    assert listed == {"tool_result.is_error", "thinking", "thinking.budget_tokens", "service_tier", "metadata.team"}


FIRST = "messages[0].content[0]"
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, FIRST),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, FIRST),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, FIRST),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, f"{FIRST}.text"),
    ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, FIRST),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, f"{FIRST}.tool_use_id"),
    ({"messages": [{"role": "user", "content": [RESULT]}]}, f"{FIRST}.tool_use_id"),
    (
        {"messages": [{"role": "user", "content": [RESULT]}, {"role": "assistant", "content": [USE]}]},
        f"{FIRST}.tool_use_id",
    ),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": 1}]}]},
        "messages[0].content[0].input",
    ),
    ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking"}]}]}, FIRST),
    ({"system": 1}, "system"),
    ({"system": [{"type": "image"}]}, "system[0]"),
    ({"model": "nobody"}, "model"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 2**70}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -5}, "top_k"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": "a"}, "stop_sequences"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"thinking": {"type": "some"}}, "thinking.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format.schema"),
    ({"container": "c"}, "container"),
    ({"n": 2}, "n"),
    ({"messages": [{"role": "user", "content": "the dog sleeps " * 500}]}, "messages"),
]


@pytest.mark.parametrize(("wrong", "param"), FAULTS, ids=[f"{param}-{at}" for at, (_, param) in enumerate(FAULTS)])
def test_a_fault_in_a_request_is_named(http: httpx.Client, wrong: dict[str, Any], param: str) -> None:
    answer = http.post(PATH, json={"model": "tiny", "messages": HELLO, "max_tokens": 2, **wrong})
    assert answer.status_code in (400, 404), answer.text
    told = answer.json()
    assert told["type"] == "error"
    assert told["error"]["param"] == param, answer.text
    assert told["error"]["type"] == ("not_found_error" if answer.status_code == 404 else "invalid_request_error")


def test_errors_are_those_of_anthropics_client(claude: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        claude.messages.create(**{**GREEDY, "extra_body": {"temperature": 2}})
    with pytest.raises(anthropic.NotFoundError, match="nobody") as told:
        claude.messages.create(**{**GREEDY, "model": "nobody"})
    assert told.value.type == "not_found_error"
    with (
        pytest.raises(anthropic.BadRequestError),
        claude.messages.stream(**{**GREEDY, "extra_body": {"top_p": 0}}) as stream,
    ):
        list(stream)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", PATH, b"", 405),
        ("POST", PATH, b"{", 400),
        ("POST", f"{PATH}/nothing", b"{}", 404),
        ("POST", PATH, b" " * (17 << 20), 413),
    ],
)
def test_whatever_goes_wrong_has_one_shape(
    http: httpx.Client, method: str, path: str, body: bytes, status: int
) -> None:
    answer = http.request(method, path, content=body)
    assert answer.status_code == status
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["message"]
    assert answer.headers["x-request-id"]


def test_who_hangs_up_is_aborted(served: Served, http: httpx.Client) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 200, "stream": True, "ignore_eos": True}
    with http.stream("POST", PATH, json=body) as answer:
        next(answer.iter_lines())
    while served.engine.status().running:
        pass


def test_answers_are_as_the_openapi_document_says(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    told = document["paths"][PATH]["post"]["responses"]
    answers = {200: {"messages": HELLO, "max_tokens": 2}, 400: {"messages": HELLO, "max_tokens": 0}}
    for status, body in answers.items():
        answer = http.post(PATH, json={"model": "tiny", **body})
        schema = told[str(status)]["content"]["application/json"]["schema"]
        jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
        assert answer.status_code == status
    assert set(MessageObject.model_fields) == set(http.post(PATH, json={"model": "tiny", **answers[200]}).json())
