"""Tools over HTTP: models that call them, whole and streamed, as OpenAI's client sees it, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from aril.server.chat import deltas_of
from aril.server.speech.base import CallDelta, Delta
from builders.parrot import TEACHES_HERMES, make_parrot
from builders.serving import speaking
from openai import OpenAI

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of the coming days",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NOW: Any = {"type": "function", "function": {"name": "now"}}
TOOLS: Any = [WEATHER, NOW]
MESSAGES: Any = [{"role": "user", "content": "what is it like?"}]
ARGUMENTS = '{"city": "Paris", "days": 3}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
SCRIPTS = {
    "call": CALL,
    "words and calls": f"Let me see.\n{CALL}\n<tool_call>\n" + '{"arguments": {}, "name": "now"}\n</tool_call>',
    "broken": '<tool_call>{"name": "weather", "arguments": {"city": {"a": 1}</tool_call> So be it.',
    "words": "It is fine.",
    "stranger": '<tool_call>{"name": "launch", "arguments": {}}</tool_call>',
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A model that says the SCRIPTS; its chat template teaches tools in Hermes' format."""
    folder = make_parrot(tmp_path_factory.mktemp("parrot") / "model", SCRIPTS, template=TEACHES_HERMES)
    with speaking(folder) as url:
        yield url


@pytest.fixture(scope="module")
def openai(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


def asking(say: str | None = None, **fields: Any) -> dict[str, Any]:
    """A request that makes the model say one of its scripts; without one it says nothing by itself."""
    told = {} if say is None else {"chat_template_kwargs": {"say": say}}
    return {
        "model": "tiny",
        "messages": MESSAGES,
        "tools": TOOLS,
        "temperature": 0,
        "max_tokens": 200,
        **told,
        **fields,
    }


def ask(url: str, say: str | None = None, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=asking(say, **fields), timeout=60)


def choice(url: str, say: str | None = None, **fields: Any) -> Any:
    answer = ask(url, say, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def streamed(url: str, say: str | None = None, **fields: Any) -> Any:
    """One choice put together from its stream, in the shape of a whole one; each call's name must come once."""
    answer = ask(url, say, **fields, stream=True)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    message: dict[str, Any] = {"content": ""}
    finish_reason = None
    for event in events:
        [found] = event["choices"]
        message["content"] += found["delta"].get("content") or ""
        for news in found["delta"].get("tool_calls") or []:
            calls = message.setdefault("tool_calls", [])
            if "id" in news:
                assert news["index"] == len(calls)
                calls.append({"id": news["id"], "type": "function", "function": {**news["function"]}})
            else:
                calls[news["index"]]["function"]["arguments"] += news["function"]["arguments"]
        finish_reason = found["finish_reason"] or finish_reason
    return {"message": message, "finish_reason": finish_reason}


def calls_of(found: Any) -> list[tuple[str, str]]:
    calls = found["message"].get("tool_calls", [])
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def test_a_call_has_the_shape_that_openai_promises(url: str) -> None:
    found = choice(url, "call")
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] is None
    [call] = found["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "weather", "arguments": ARGUMENTS}


def test_words_before_calls_are_content(url: str) -> None:
    found = choice(url, "words and calls")
    assert found["message"]["content"] == "Let me see."
    assert calls_of(found) == [("weather", ARGUMENTS), ("now", "{}")]
    assert found["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("say", SCRIPTS)
def test_a_stream_says_the_same_as_the_whole_answer(url: str, say: str) -> None:
    whole, stream = choice(url, say), streamed(url, say)
    assert calls_of(stream) == calls_of(whole)
    assert stream["message"]["content"] == (whole["message"]["content"] or "")
    assert stream["finish_reason"] == whole["finish_reason"]


def test_openais_client_accumulates_a_streamed_call(openai: OpenAI) -> None:
    body = asking("words and calls")
    more = {"chat_template_kwargs": body.pop("chat_template_kwargs")}
    with openai.chat.completions.stream(**body, extra_body=more) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert kinds.count("tool_calls.function.arguments.delta") >= 2
    assert message.content == "Let me see."
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls or []] == [
        ("weather", ARGUMENTS),
        ("now", "{}"),
    ]


def test_an_event_has_one_call_at_most_and_the_end_comes_after_the_calls() -> None:
    calls = tuple(CallDelta(index, f"call_{index}", "now", "{}") for index in range(2))
    said, *others, end = deltas_of(Delta("Let me see.", calls=calls), has_ended=True)
    assert said["content"] == "Let me see."
    assert [[call["index"] for call in event["tool_calls"]] for event in (said, *others)] == [[0], [1]]
    assert end == {}


def test_a_streamed_call_is_named_once_and_its_arguments_add_up(openai: OpenAI) -> None:
    body = asking("call")
    more = {"chat_template_kwargs": body.pop("chat_template_kwargs")}
    chunks = list(openai.chat.completions.create(**body, stream=True, extra_body=more))
    news = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [call.function.name for call in news if call.function and call.function.name] == ["weather"]
    assert news[0].id
    assert "".join(call.function.arguments or "" for call in news if call.function) == ARGUMENTS
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["tool_calls"]


def test_choices_have_calls_and_ids_of_their_own(url: str) -> None:
    choices = ask(url, "call", n=3).json()["choices"]
    ids = [call["id"] for found in choices for call in found["message"]["tool_calls"]]
    assert len(set(ids)) == 3
    assert [calls_of(found) for found in choices] == [[("weather", ARGUMENTS)]] * 3


def test_with_parallel_tool_calls_false_there_is_one(url: str) -> None:
    found = choice(url, "words and calls", parallel_tool_calls=False)
    assert calls_of(found) == calls_of(streamed(url, "words and calls", parallel_tool_calls=False))
    assert calls_of(found) == [("weather", ARGUMENTS)]


def test_unbalanced_brackets_are_the_callers_to_see(url: str) -> None:
    found = choice(url, "broken")
    assert calls_of(found) == [("weather", '{"city": {"a": 1}')]
    assert found["message"]["content"].strip() == "So be it."


def test_a_call_that_is_cut_says_length(url: str) -> None:
    found = choice(url, "call", max_tokens=8)
    [(name, arguments)] = calls_of(found)
    assert (name, found["finish_reason"]) == ("weather", "length")
    assert ARGUMENTS.startswith(arguments)


def test_a_tool_that_is_not_offered_is_not_called(url: str) -> None:
    found = choice(url, "stranger")
    assert (found["message"]["content"], found["finish_reason"]) == (SCRIPTS["stranger"], "stop")
    assert "tool_calls" not in found["message"]


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None}, {"tool_choice": "none"}])
def test_without_tools_everything_is_content(url: str, fields: dict[str, Any]) -> None:
    found = choice(url, "call", **fields)
    assert (found["message"]["content"], found["finish_reason"]) == (CALL, "stop")


def test_allowed_tools_leave_the_others_uncalled(url: str) -> None:
    named = {"type": "function", "function": {"name": "now"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    found = choice(url, "words and calls", tool_choice=allowed)
    assert calls_of(found) == [("now", "{}")]
    assert "weather" in found["message"]["content"]


def test_logprobs_in_a_stream_are_of_every_token_though_text_is_held_back(url: str) -> None:
    whole = choice(url, "call", logprobs=True)
    answer = ask(url, "call", logprobs=True, stream=True)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    parts = [event["choices"][0]["logprobs"] for event in events]
    tokens = [item["token"] for part in parts if part for item in part["content"]]
    assert tokens == [item["token"] for item in whole["logprobs"]["content"]]
    assert "".join(tokens).removesuffix("<|im_end|>") == CALL


def test_usage_counts_what_is_held_back_too(url: str) -> None:
    answer = ask(url, "call", stream=True, stream_options={"include_usage": True})
    last = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")][-1]
    assert last["usage"]["completion_tokens"] == ask(url, "call").json()["usage"]["completion_tokens"]


NAMED: Any = {"type": "function", "function": {"name": "weather"}}
NAMED_NOW: Any = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize("seed", range(3))
def test_required_is_at_least_one_valid_call(url: str, seed: int) -> None:
    found = choice(url, tool_choice="required", temperature=1, seed=seed, parallel_tool_calls=False)
    [(name, arguments)] = calls_of(found)
    assert found["finish_reason"] == "tool_calls"
    assert json.loads(arguments) == {} if name == "now" else set(json.loads(arguments)) == {"city", "days"}


def test_required_is_streamed_as_it_is_whole(url: str) -> None:
    more = {"tool_choice": "required", "temperature": 1, "seed": 4, "max_tokens": 300}
    whole, stream = choice(url, **more), streamed(url, **more)
    assert calls_of(whole) == calls_of(stream)
    assert whole["finish_reason"] == stream["finish_reason"]
    assert whole["message"]["content"] is None
    assert stream["message"]["content"] == ""


def test_a_named_tool_is_called_and_the_answer_stops(url: str) -> None:
    whole, stream = (hear(url, tool_choice=NAMED, temperature=1, seed=5) for hear in (choice, streamed))
    [(name, arguments)] = calls_of(whole)
    assert calls_of(stream) == [(name, arguments)]
    assert (name, set(json.loads(arguments))) == ("weather", {"city", "days"})
    assert (whole["finish_reason"], stream["finish_reason"]) == ("stop", "stop")


def test_a_tool_without_parameters_is_called_with_an_empty_object(url: str) -> None:
    for hear in (choice, streamed):
        [(name, arguments)] = calls_of(hear(url, tool_choice=NAMED_NOW))
        assert (name, json.loads(arguments)) == ("now", {})


def test_forced_arguments_that_are_cut_say_length(url: str) -> None:
    for hear in (choice, streamed):
        found = hear(url, tool_choice=NAMED, max_tokens=3)
        assert found["finish_reason"] == "length"
        assert calls_of(found)[0][1].startswith("{")


def test_a_forced_call_that_is_cut_before_its_arguments_is_no_words(url: str) -> None:
    for hear in (choice, streamed):
        found = hear(url, tool_choice="required", max_tokens=3)
        assert found["finish_reason"] == "length"
        assert found["message"]["content"] == ""


def test_allowed_tools_can_be_required(url: str) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED_NOW]}}
    found = choice(url, tool_choice=allowed, parallel_tool_calls=False)
    assert [(name, json.loads(arguments)) for name, arguments in calls_of(found)] == [("now", {})]


def test_references_within_the_schema_of_a_tool_are_followed(url: str) -> None:
    parameters = {
        "properties": {"colour": {"$ref": "#/$defs/colour"}},
        "required": ["colour"],
        "additionalProperties": False,
        "$defs": {"colour": {"enum": ["red", "blue"]}},
    }
    tools = [NOW, {"type": "function", "function": {"name": "paint", "parameters": parameters, "strict": True}}]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools[1:]}}
    for tool_choice in (allowed, {"type": "function", "function": {"name": "paint"}}):
        found = choice(url, tools=tools, tool_choice=tool_choice, parallel_tool_calls=False)
        [(_, arguments)] = calls_of(found)
        assert json.loads(arguments)["colour"] in ("red", "blue")


def test_a_conversation_with_calls_goes_on(url: str) -> None:
    call = choice(url, "call")["message"]
    for content in (call["content"], ""):
        messages = [
            *MESSAGES,
            {**call, "content": content},
            {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "sunny"},
        ]
        assert choice(url, "words", messages=messages)["message"]["content"] == "It is fine."
    prompt = httpx.post(f"{url}/tokenize", json={"messages": messages, "tools": TOOLS}).json()["tokens"]
    text = httpx.post(f"{url}/detokenize", json={"tokens": prompt}).json()["prompt"]
    assert '"arguments": {"city": "Paris", "days": 3}' in text  # an object again
    assert "sunny" in text
    assert text.count('"name": "weather"') == 2


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"tools": "weather"}, "tools"),
    ({"tools": [1]}, "tools[0]"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [tool(name="")]}, "tools[0].function.name"),
    ({"tools": [tool(name="a b")]}, "tools[0].function.name"),
    ({"tools": [tool(name="a" * 65)]}, "tools[0].function.name"),
    ({"tools": [tool(), NOW, tool()]}, "tools[2].function.name"),
    ({"tools": [tool(strict="yes")]}, "tools[0].function.strict"),
    ({"tools": [tool(parameters="none")]}, "tools[0].function.parameters"),
    ({"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters.type"),
    ({"tools": [tool(parameters={"properties": []})]}, "tools[0].function.parameters.properties"),
    ({"tools": [tool(parameters={"properties": {"a": 5}})]}, "tools[0].function.parameters.properties"),
    ({"tools": [tool(parameters={"required": "a"})]}, "tools[0].function.parameters.required"),
    ({"tools": [tool()] * 600}, "tools"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "function", "function": {"name": "launch"}}}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools.mode"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, "tool_choice.allowed_tools.tools"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOW, tool()]}}},
     "tool_choice.allowed_tools.tools[1].function.name"),
    *(({"tools": [], "tool_choice": how}, "tool_choice") for how in ("auto", "required", NAMED)),
    ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_object"}, "tool_choice": "required"}, "response_format"),
    ({"structured_outputs": {"regex": "a"}, "tool_choice": NAMED}, "structured_outputs"),
    ({"tools": [tool(parameters={"properties": {"a": {"type": "strnig"}}, "required": ["a"]})],
      "tool_choice": "required"}, "tools[0].function.parameters"),
    ({"tools": [NOW, tool(parameters={"properties": {"a": {"$ref": "#/b"}}})], "tool_choice": "required"},
     "tools[1].function.parameters"),
    ({"tools": [tool(strict=True, parameters={"properties": {"a": {"not": {"type": "string"}}}, "required": ["a"]})],
      "tool_choice": {"type": "function", "function": {"name": "f"}}, "stream": True}, "tools[0].function.parameters"),
    ({"include_reasoning": False}, "include_reasoning"),
    ({"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [{"id": "1"}]}]},
     "messages[1].tool_calls[0].function.name"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "param"), FAULTS, ids=[f"{json.dumps(fault)[:60]}" for fault, _ in FAULTS])
def test_a_fault_in_tools_is_named(url: str, fault: dict[str, Any], param: str) -> None:
    answer = ask(url, **fault)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text


def test_what_a_tools_schema_cannot_be_held_to_is_told_as_it_was_written(url: str) -> None:
    parameters = {"properties": {"a": {"$ref": "#/b"}}, "required": ["a"]}
    error = ask(url, tools=[NOW, tool(parameters=parameters)], tool_choice="required").json()["error"]
    assert error["message"] == (
        "tools[1].function.parameters: `$ref` at #/properties/a leads to #/b, and nothing is there"
    )


ODD = ["", "{", "null", "[1]", '{"a": "\\ud800"}', "[" * 500, "1" * 500, '{"a": NaN}', {"a": 1}]


@pytest.mark.parametrize(
    "harmless",
    [
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}, "tool_choice": "none"},
        {"tools": [tool(parameters=None, description=None, strict=None)]},
        {"tools": [tool(parameters={})]},
        {"parallel_tool_calls": True, "tools": None},
        {"include_reasoning": True},
        {"messages": [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [tool(arguments="{")]}, *MESSAGES]},
        *(
            {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [tool(arguments=odd)]}, *MESSAGES]}
            for odd in ODD
        ),
        {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [tool()]}, {"role": "tool", "content": "7"}]},
    ],
)
def test_what_is_no_fault_is_accepted(url: str, harmless: dict[str, Any]) -> None:
    assert ask(url, **{**harmless, "max_tokens": 1}).status_code == 200
