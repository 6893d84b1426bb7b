"""Tools and thoughts in the shapes of responses and messages, as their clients see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from builders.parrot import TEACHES_HERMES, make_parrot
from builders.serving import speaking
from openai import OpenAI

SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION: Any = {"type": "function", "name": "weather", "description": "of the coming days", "parameters": SCHEMA}
TOOL: Any = {"name": "weather", "description": "of the coming days", "input_schema": SCHEMA}
WRONG: Any = {"properties": {"a": {"type": "b"}}, "required": ["a"]}
ARGUMENTS = '{"city": "Paris", "days": 3}'
SAID = f'<think>Where?</think>I look.\n<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
SCRIPTS = {"all": SAID, "words": "It is fine."}
ASK = "what is it like?"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A model that says the SCRIPTS."""
    folder = make_parrot(tmp_path_factory.mktemp("parrot") / "model", SCRIPTS, template=TEACHES_HERMES)
    with speaking(folder, reasoning_parser="qwen3") as url:
        yield url


@pytest.fixture(scope="module")
def openai(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def claude(url: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=url, api_key="unused", max_retries=0) as client:
        yield client


def saying(script: str) -> Any:
    """What makes the model say a script."""
    return {"temperature": 0, "chat_template_kwargs": {"say": script}}


def response(openai: OpenAI, **fields: Any) -> Any:
    asked: Any = {"model": "tiny", "input": ASK, "tools": [FUNCTION], "max_output_tokens": 200, **fields}
    return openai.responses.create(**asked)


def message(claude: Anthropic, **fields: Any) -> Any:
    asked: Any = {"messages": [{"role": "user", "content": ASK}], "tools": [TOOL], "max_tokens": 200, **fields}
    return claude.messages.create(model="tiny", **asked)


def test_a_response_has_thoughts_words_and_calls(openai: OpenAI) -> None:
    answer = response(openai, extra_body=saying("all"))
    thought, words, call = answer.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "Where?")
    assert answer.output_text == words.content[0].text == "I look."
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", json.loads(ARGUMENTS))
    assert answer.status == "completed"
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens


def test_a_streamed_response_has_them_too(openai: OpenAI) -> None:
    whole = response(openai, extra_body=saying("all"))
    events = list(response(openai, stream=True, extra_body=saying("all")))
    kinds = ("reasoning_text", "output_text", "function_call_arguments")
    told = {k: "".join(e.delta for e in events if e.type == f"response.{k}.delta") for k in kinds}
    assert told["reasoning_text"] == "Where?"
    assert told["output_text"] == whole.output_text
    assert told["function_call_arguments"] == whole.output[2].arguments
    final = events[-1].response
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]


def test_openais_helper_reads_the_arguments(openai: OpenAI) -> None:
    asked: Any = {"model": "tiny", "input": ASK, "tools": [{**FUNCTION, "strict": True}], "max_output_tokens": 200}
    with openai.responses.stream(**asked, extra_body=saying("all")) as stream:
        final = stream.get_final_response()
    assert final.output[2].parsed_arguments == json.loads(ARGUMENTS)  # type: ignore[union-attr]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_function_that_must_be_called_is(openai: OpenAI, choice: Any) -> None:
    answer = response(openai, tool_choice=choice, parallel_tool_calls=False)
    [call] = answer.output
    assert call.name == "weather"
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    assert answer.tool_choice == choice or answer.tool_choice.name == "weather"


def test_the_result_of_a_call_goes_on_from_it(openai: OpenAI) -> None:
    call = response(openai, extra_body=saying("all")).output[2]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items: Any = [{"role": "user", "content": ASK}, call.to_dict(), result]
    assert response(openai, input=items, extra_body=saying("words")).output_text == "It is fine."


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        ({"tools": [{**FUNCTION, "parameters": {"type": "nothing"}}]}, "tools[0].parameters"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_a_fault_in_tools_is_named_as_responses_have_it(url: str, wrong: dict[str, Any], param: str) -> None:
    answer = httpx.post(f"{url}/v1/responses", json={"model": "tiny", "input": ASK, **wrong}, timeout=60)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].startswith(param)
    assert ".function" not in error["param"] + error["message"]


def test_a_message_has_thoughts_words_and_calls(claude: Anthropic) -> None:
    answer = message(claude, extra_body=saying("all"))
    thought, words, call = answer.content
    assert (thought.type, thought.thinking) == ("thinking", "Where?")
    assert (words.type, words.text) == ("text", "I look.")
    assert (call.type, call.name, call.input) == ("tool_use", "weather", json.loads(ARGUMENTS))
    assert answer.stop_reason == "tool_use"


def test_a_streamed_message_has_them_too(claude: Anthropic) -> None:
    whole = message(claude, extra_body=saying("all"))
    asked: Any = {"messages": [{"role": "user", "content": ASK}], "tools": [TOOL], "max_tokens": 200}
    with claude.messages.stream(model="tiny", **asked, extra_body=saying("all")) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[2].input == whole.content[2].input  # type: ignore[union-attr]
    assert final.stop_reason == "tool_use"


@pytest.mark.parametrize(
    "choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}]
)
def test_a_tool_that_must_be_used_is(claude: Anthropic, choice: Any) -> None:
    answer = message(claude, tool_choice=choice)
    [call] = answer.content
    assert (call.type, call.name, answer.stop_reason) == ("tool_use", "weather", "tool_use")
    assert call.input["days"] in (1, 2, 3)


def test_the_result_of_a_tool_goes_on_from_it(claude: Anthropic) -> None:
    content = [block.to_dict() for block in message(claude, extra_body=saying("all")).content]
    result = {"type": "tool_result", "tool_use_id": content[2]["id"], "content": "sunny"}
    turns: Any = [
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": content},
        {"role": "user", "content": [result]},
    ]
    answer = message(claude, messages=turns, extra_body=saying("words"))
    assert (answer.content[0].text, answer.stop_reason) == ("It is fine.", "end_turn")


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"tools": [{**TOOL, "input_schema": {"type": "nothing"}}]}, "tools[0].input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        (
            {"tools": [TOOL, {"name": "f", "input_schema": WRONG}], "tool_choice": {"type": "any"}},
            "tools[1].input_schema",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name"),
    ],
)
def test_a_fault_in_tools_is_named_as_messages_have_it(url: str, wrong: dict[str, Any], param: str) -> None:
    body = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": ASK}], **wrong}
    answer = httpx.post(f"{url}/v1/messages", json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].startswith(param)
    assert ".function" not in error["param"] + error["message"]
