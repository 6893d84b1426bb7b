"""Tools with OpenAI's Python client: calls that are forced, whole and streamed, and the turn that answers them."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from .forms import HELLO, Seed

TOOLS: list[Any] = [openai.pydantic_function_tool(Seed, name="plant", description="Plants a seed.")]
NAMED: Any = {"type": "function", "function": {"name": "plant"}}
ASKED: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "max_tokens": 300, "seed": 5}


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_forced_call_is_parsed(client: OpenAI, choice: Any) -> None:
    answer = client.chat.completions.parse(**ASKED, tool_choice=choice)
    (call, *_) = answer.choices[0].message.tool_calls or []
    assert call.function.name == "plant"
    assert isinstance(call.function.parsed_arguments, Seed)


def test_a_streamed_call_is_the_whole_one(client: OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED, tool_choice=NAMED).choices[0]
    with client.chat.completions.stream(**ASKED, tool_choice=NAMED) as stream:
        pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    (expected,) = whole.message.tool_calls or []
    (call,) = final.message.tool_calls or []
    assert "".join(pieces) == call.function.arguments == expected.function.arguments  # type: ignore[union-attr]
    assert (final.finish_reason, call.id != "") == (whole.finish_reason, True)


def test_no_call_comes_where_none_may(client: OpenAI) -> None:
    answer = client.chat.completions.create(**{**ASKED, "max_tokens": 20}, tool_choice="none")
    assert not answer.choices[0].message.tool_calls


def test_the_result_of_a_call_is_answered(client: OpenAI) -> None:
    first = client.chat.completions.create(**ASKED, tool_choice=NAMED).choices[0].message
    (call,) = first.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"done": True})}
    follow: Any = [*HELLO, first.model_dump(exclude_none=True), result]
    answer = client.chat.completions.create(**{**ASKED, "messages": follow, "max_tokens": 10}, tool_choice="none")
    assert answer.choices[0].message.role == "assistant"


def test_a_wrong_choice_is_a_bad_request(client: OpenAI) -> None:
    wrong: Any = {"type": "function", "function": {"name": "dig"}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASKED, tool_choice=wrong)
    assert (caught.value.param or "").startswith("tool_choice")
