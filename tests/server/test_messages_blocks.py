"""Anthropic's blocks as chat messages, and what a model says as blocks and their events."""

from __future__ import annotations

from typing import Any

import pytest
from aril.core.errors import ArilError, RateLimited, Unavailable
from aril.server.messages.asked import chat_of
from aril.server.messages.blocks import messages_of
from aril.server.messages.errors import told as body_told
from aril.server.messages.schemas import MessagesRequest, Said
from aril.server.messages.telling import Content
from aril.server.speech.base import CallDelta, Delta

HELLO = [{"role": "user", "content": "hi"}]


def said(role: Any, *blocks: dict[str, Any]) -> Said:
    """A turn of blocks."""
    return Said(role=role, content=list(blocks))


def test_thoughts_words_and_calls_of_one_turn_are_one_message() -> None:
    turns = [
        said("user", {"type": "text", "text": "a"}, {"type": "text", "text": "b"}),
        said(
            "assistant",
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "I look"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"é": 1}},
        ),
        said(
            "user",
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "1"}]},
            {"type": "text", "text": "and?"},
        ),
    ]
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"é": 1}'}}
    assert messages_of(turns, [{"type": "text", "text": "Be short."}], "tiny") == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "I look", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "1"},
        {"role": "user", "content": "and?"},
    ]


def test_a_result_without_content_says_nothing() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    turns = [said("assistant", use), said("user", {"type": "tool_result", "tool_use_id": "t1"})]
    assert messages_of(turns, None, "tiny")[1:] == [{"role": "tool", "tool_call_id": "t1", "content": ""}]


@pytest.mark.parametrize(
    ("choice", "chat"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_a_choice_of_tools_is_chats(choice: dict[str, Any], chat: Any) -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    fields = {"model": "m", "messages": HELLO, "max_tokens": 1, "tools": [tool], "tool_choice": choice}
    asked = chat_of(MessagesRequest.model_validate(fields), "tiny", max_tokens=1)
    assert asked.tool_choice == chat
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert [tool.model_dump(exclude_none=True) for tool in asked.tools or ()] == [
        {"type": "function", "function": function}
    ]


@pytest.mark.parametrize(("kind", "told"), [("enabled", True), ("adaptive", True), ("disabled", False)])
def test_thinking_is_told_to_the_chat_template(kind: str, told: bool) -> None:
    fields = {"model": "m", "messages": HELLO, "max_tokens": 1, "thinking": {"type": kind}}
    asked = chat_of(MessagesRequest.model_validate(fields), "tiny", max_tokens=1)
    assert asked.chat_template_kwargs == {"enable_thinking": told}
    fields["chat_template_kwargs"] = {"enable_thinking": not told}
    asked = chat_of(MessagesRequest.model_validate(fields), "tiny", max_tokens=1)
    assert asked.chat_template_kwargs == {"enable_thinking": not told}


def told(*deltas: Delta) -> tuple[Content, list[tuple[str, dict[str, Any]]]]:
    """The content that deltas make, and all events of it."""
    content = Content()
    events = [event for delta in deltas for event in content.take(delta)]
    return content, [*events, *content.end()]


DELTAS = (
    Delta(reasoning="hm"),
    Delta(reasoning="m", content="I look"),
    Delta(calls=(CallDelta(0, "call_1", "f", '{"a"'),)),
    Delta(calls=(CallDelta(0, arguments=": 1}"), CallDelta(1, "call_2", "g"))),
)


def test_thoughts_words_and_calls_are_blocks_one_after_another() -> None:
    content, events = told(*DELTAS)
    assert content.whole() == [
        {"type": "thinking", "thinking": "hmm", "signature": ""},
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "call_2", "name": "g", "input": {}},
    ]
    assert [(name.removeprefix("content_block_"), fields["index"]) for name, fields in events] == [
        ("start", 0),
        ("delta", 0),
        ("delta", 0),
        ("stop", 0),
        ("start", 1),
        ("delta", 1),
        ("stop", 1),
        ("start", 2),
        ("delta", 2),
        ("delta", 2),
        ("stop", 2),
        ("start", 3),
        ("stop", 3),
    ]
    assert [fields["delta"] for name, fields in events if name == "content_block_delta"] == [
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "thinking_delta", "thinking": "m"},
        {"type": "text_delta", "text": "I look"},
        {"type": "input_json_delta", "partial_json": '{"a"'},
        {"type": "input_json_delta", "partial_json": ": 1}"},
    ]


@pytest.mark.parametrize(("arguments", "shown"), [("{", {"arguments": "{"}), ("[1]", {"arguments": [1]}), ("", {})])
def test_arguments_that_are_no_object_stand_in_one(arguments: str, shown: dict[str, Any]) -> None:
    content, _ = told(Delta(calls=(CallDelta(0, "call_1", "f", arguments),)))
    assert content.whole()[0]["input"] == shown


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unavailable("x"), "overloaded_error"),
        (RateLimited("x", retry_after=1), "rate_limit_error"),
        (ArilError("x"), "api_error"),
    ],
)
def test_an_error_is_of_anthropics_kind(error: ArilError, kind: str) -> None:
    body = body_told(error)
    assert (body["type"], body["error"]["type"], body["error"]["message"]) == ("error", kind, "x")
