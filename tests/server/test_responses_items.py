"""Items of a conversation and the chat messages that they stand for."""

from __future__ import annotations

from aril.server.responses.items import items_in, messages_of


def test_thoughts_words_and_calls_of_one_turn_are_one_message() -> None:
    items = items_in(
        [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"role": "assistant", "content": "I look"},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
            {"role": "assistant", "content": "There"},
        ],
        "tiny",
    )
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id, name in (("c1", "f"), ("c2", "g"))
    ]
    assert messages_of(items) == [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "I look", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": "There"},
    ]


def test_two_messages_in_a_row_stay_two() -> None:
    items = items_in([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], "tiny")
    assert [message["content"] for message in messages_of(items)] == ["a", "b"]


def test_items_that_have_ids_keep_them_and_others_get_some() -> None:
    first, second = items_in(
        [{"id": "msg_1", "role": "user", "content": "a"}, {"role": "user", "content": "b"}], "tiny"
    )
    assert first["id"] == "msg_1"
    assert second["id"].startswith("msg_")


def test_what_is_made_whole_is_whole() -> None:
    items = items_in("hi", "tiny")
    assert items_in(items, "tiny") == items
