"""What models write as calls of tools, in every format, and what looks like one and is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aril.server.speech.base import Listener
from aril.server.speech.calls import REGISTRY
from builders.speech import Said, heard, said_however_cut
from hypothesis import given, settings
from hypothesis import strategies as st

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"type": "array"},
            "unit": {"type": ["string", "null"]},
        },
    },
    "now": {"type": "object", "properties": {}},
}
PARIS = '{"city": "Paris"}'
CALL = '{"name": "weather", "arguments": {"city": "Paris"}}'
NAMES = REGISTRY.names()


def said(format_: str, text: str, *, most: int | None = None) -> Said:
    def listener() -> Listener:
        return REGISTRY[format_].listener(TOOLS, most)

    return said_however_cut(listener, text)


def content_and_calls(format_: str, text: str, **more: Any) -> tuple[str, list[tuple[str, str]]]:
    _, content, calls = said(format_, text, **more)
    return content, calls


ONE: dict[str, str] = {
    "hermes": f"<tool_call>\n{CALL}\n</tool_call>",
    "granite": f"<|tool_call|>[{CALL}]",
    "json": CALL,
    "llama3_json": CALL.replace("arguments", "parameters"),
    "llama4_pythonic": '<|python_start|>[weather(city="Paris")]<|python_end|>',
    "mistral": f"[TOOL_CALLS][{CALL}]",
    "pythonic": '[weather(city="Paris")]',
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
}
WITHOUT_ARGUMENTS: dict[str, str] = {
    "hermes": '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
    "granite": '<|tool_call|>[{"name": "now"}]',
    "json": '{"name": "now", "arguments": {}}',
    "llama3_json": '{"name": "now", "parameters": {}}',
    "llama4_pythonic": "[now()]",
    "mistral": "[TOOL_CALLS]now[ARGS]{}",
    "pythonic": "[now()]",
    "qwen3_coder": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
}


def test_every_format_has_its_cases() -> None:
    assert sorted(ONE) == sorted(WITHOUT_ARGUMENTS) == NAMES


@pytest.mark.parametrize("format_", NAMES)
def test_a_call_is_heard(format_: str) -> None:
    assert content_and_calls(format_, ONE[format_]) == ("", [("weather", PARIS)])


@pytest.mark.parametrize("format_", NAMES)
def test_a_call_without_arguments_has_an_empty_object(format_: str) -> None:
    assert content_and_calls(format_, WITHOUT_ARGUMENTS[format_]) == ("", [("now", "{}")])


@pytest.mark.parametrize("format_", NAMES)
def test_a_tool_that_is_not_offered_is_not_called(format_: str) -> None:
    text = ONE[format_].replace("weather", "whether")
    assert content_and_calls(format_, text) == (text, [])


@pytest.mark.parametrize("format_", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello, world.",
        " \n padded \n ",
        '{"city": "Paris"}',
        "[1] and {2}",
        "a < b, [T, <tool",
        "<tool_call>",
        "[TOOL_CALLS]",
        '<tool_call>{"name": "weather", "arg',
        '[TOOL_CALLS][{"name": "weather"',
        "{",
        "[",
        "[weather",
        "<tool_call><function=weather",
        "```json\n{",
    ],
)
def test_what_is_no_call_is_said_to_the_letter(format_: str, text: str) -> None:
    assert content_and_calls(format_, text) == (text, [])


@pytest.mark.parametrize(
    ("format_", "text", "calls"),
    [
        ("hermes", f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", 2),
        ("hermes", f"<tool_call>[{CALL}, {CALL}]</tool_call>", 2),
        ("granite", f"<|tool_call|>[{CALL}, {CALL}, {CALL}]", 3),
        ("json", f"[{CALL}, {CALL}]", 2),
        ("json", f"```json\n{CALL}\n```", 1),
        ("json", f"<tool_call>[{CALL}]</tool_call>", 1),
        ("llama3_json", f"<|python_tag|>{CALL}; {CALL}", 2),
        ("llama3_json", f"{CALL}\n{CALL}", 2),
        ("mistral", f"[TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]weather{PARIS}", 2),
        ("mistral", f"[TOOL_CALLS]weather[CALL_ID]x7Yq[ARGS]{PARIS}", 1),
        ("pythonic", "[weather(city='Paris'), weather(city = \"Paris\",)]", 2),
        ("qwen3_coder", ONE["qwen3_coder"] + "\n" + ONE["qwen3_coder"], 2),
        ("qwen3_coder", ONE["qwen3_coder"].replace("<tool_call>\n", ""), 1),
    ],
)
def test_several_calls_are_heard_in_order(format_: str, text: str, calls: int) -> None:
    assert content_and_calls(format_, text) == ("", [("weather", PARIS)] * calls)


@pytest.mark.parametrize("format_", [name for name in NAMES if name not in ("llama3_json", "json", "pythonic")])
def test_words_before_a_call_are_content(format_: str) -> None:
    text = "Let me see.\n\n" + {**ONE, "json": ONE["hermes"]}[format_]
    assert content_and_calls(format_, text) == ("Let me see.", [("weather", PARIS)])


@pytest.mark.parametrize("format_", ["hermes", "json", "mistral", "qwen3_coder"])
def test_calls_beyond_the_most_are_left_out(format_: str) -> None:
    two = {**ONE, "json": f"[{CALL}, {CALL}]"}[format_]
    text = two if format_ == "json" else two * 2
    assert content_and_calls(format_, text, most=1) == ("", [("weather", PARIS)])


@pytest.mark.parametrize("written", ['{"city": "{"}', '{"city": "}}"}', r'{"city": "\"}{"}', '{"city": "</tool_call"}'])
def test_brackets_in_strings_are_letters(written: str) -> None:
    text = f'<tool_call>{{"name": "weather", "arguments": {written}}}</tool_call>'
    assert content_and_calls("hermes", text) == ("", [("weather", written)])


@pytest.mark.parametrize(
    ("arguments", "heard_as"),
    [
        ('{"city": {"a": 1}', '{"city": {"a": 1}'),  # one bracket too few
        ('{"city": [}', '{"city": [}}'),
        ("{'city': 'Paris'}", "{'city': 'Paris'}}"),
        ('{"city": tru}', '{"city": tru}}'),
        (r'{"city": "\x"}', r'{"city": "\x"}}'),
        (r'{"city": "\u12G4"}', r'{"city": "\u12G4"}}'),
    ],
)
def test_a_call_that_breaks_off_has_all_that_was_written(arguments: str, heard_as: str) -> None:
    text = f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call> So.'
    assert content_and_calls("hermes", text)[1][0][1].startswith(heard_as.rstrip("}"))
    assert content_and_calls("hermes", text)[0].strip() == "So."


@pytest.mark.parametrize("left", ["", "}", "}}", "\n}", "]"])
def test_brackets_too_few_or_too_many_behind_the_arguments_do_no_harm(left: str) -> None:
    text = f'<tool_call>{{"name": "weather", "arguments": {PARIS}{left}\n</tool_call>'
    assert content_and_calls("hermes", text) == ("", [("weather", PARIS)])


def test_other_words_behind_the_arguments_are_said() -> None:
    text = f'<tool_call>{{"name": "weather", "arguments": {PARIS} oops</tool_call>'
    content, calls = content_and_calls("hermes", text)
    assert calls == [("weather", PARIS)]
    assert "oops" in content


@pytest.mark.parametrize(
    ("written", "heard_as"),
    [
        ('{"arguments": {"city": "Paris"}, "name": "weather"}', PARIS),
        (r'{"name": "weather", "arguments": "{\"city\": \"Paris\"}"}', PARIS),
        ('{"name": "weather", "arguments": null}', "{}"),
        ('{"name": "weather", "arguments": ""}', "{}"),
        ('{"id": 7, "type": "function", "name": "weather", "parameters": {"city": "Paris"}, "more": [1]}', PARIS),
        ('{"name": "weather", "arguments": {"city": "a\nb"}}', '{"city": "a\\nb"}'),
        ('{"name":"weather","arguments":{ "days" : -1.5e3 , "tags":[[],{},null,true] }}',
         '{ "days" : -1.5e3 , "tags":[[],{},null,true] }'),
    ],
)  # fmt: skip
def test_arguments_are_json_however_they_were_written(written: str, heard_as: str) -> None:
    content, [(name, arguments)] = content_and_calls("hermes", f"<tool_call>{written}</tool_call>")
    assert (content, name, arguments) == ("", "weather", heard_as)
    json.loads(arguments)


@pytest.mark.parametrize("written", ['{"name": "weather", "arguments": [1]}', '{"name": 7}', '{"arguments": {}}', "[]"])
def test_an_object_that_is_no_call_is_said(written: str) -> None:
    text = f"<tool_call>{written}</tool_call>"
    assert content_and_calls("hermes", text) == (text, [])


@pytest.mark.parametrize(
    ("written", "heard_as"),
    [
        ("days=3", {"days": 3}),
        ("days=-3, unit=None", {"days": -3, "unit": None}),
        ("tags=['a', \"b,)\", ('c',)]", {"tags": ["a", "b,)", ["c"]]}),
        ("tags=[{'x': [1.5, True, false]}]", {"tags": [{"x": [1.5, True, False]}]}),
        (r"city='L\'Aquila\n'", {"city": "L'Aquila\n"}),
    ],
)
def test_pythons_literals_become_json(written: str, heard_as: Any) -> None:
    content, [(_, arguments)] = content_and_calls("pythonic", f"[weather({written})]")
    assert (content, json.loads(arguments)) == ("", heard_as)


@pytest.mark.parametrize("written", ["city=open('/etc/passwd')", "days=2**99", "1", "city=", "days=1e999", "city='"])
def test_what_is_no_literal_is_not_run_but_told(written: str) -> None:
    [(_, arguments)] = content_and_calls("pythonic", f"[weather({written})]")[1]
    assert written in arguments


def test_deep_nesting_is_told_as_it_stands() -> None:
    deep = "[" * 5000
    [(_, arguments)] = heard_calls("pythonic", f"[weather(tags={deep})]")
    assert deep in arguments
    [(_, arguments)] = heard_calls("hermes", f'<tool_call>{{"name": "weather", "arguments": {{"tags": {deep}')
    assert deep in arguments


def heard_calls(format_: str, text: str) -> list[tuple[str, str]]:
    found = heard(REGISTRY[format_].listener(TOOLS, None), [text])
    return [(call.name, call.arguments) for call in found.calls]


@pytest.mark.parametrize(
    ("name", "written", "heard_as"),
    [
        ("days", "3", 3),
        ("days", "many", "many"),
        ("city", "3", "3"),
        ("city", "a\nb <c>", "a\nb <c>"),
        ("unit", "null", None),
        ("unit", "3", "3"),
        ("tags", '["a"]', ["a"]),
        ("other", "true", True),
        ("other", "NaN", "NaN"),
    ],
)
def test_plain_parameters_become_what_the_schema_says(name: str, written: str, heard_as: Any) -> None:
    text = f"<tool_call>\n<function=weather>\n<parameter={name}>\n{written}\n</parameter>\n</function>\n</tool_call>"
    [(_, arguments)] = content_and_calls("qwen3_coder", text)[1]
    assert json.loads(arguments) == {name: heard_as}


def test_the_name_comes_first_and_arguments_as_they_come() -> None:
    listener = REGISTRY["hermes"].listener(TOOLS, None)
    text = f"<tool_call>{CALL}</tool_call>"
    news = [call for letter in text for call in listener.feed(letter).calls]
    assert (news[0].name, news[0].index) == ("weather", 0)
    assert news[0].id is not None
    assert [call.name for call in news[1:]] == [None] * (len(news) - 1)
    assert len(news) > 10


@pytest.mark.parametrize("format_", NAMES)
def test_every_call_has_an_id_of_its_own(format_: str) -> None:
    found = [heard(REGISTRY[format_].listener(TOOLS, None), [ONE[format_]]).calls[0].id for _ in range(50)]
    assert len(set(found)) == 50
    assert all(len(id_) == 9 and id_.isalnum() if format_ == "mistral" else id_.startswith("call_") for id_ in found)


PARTS = st.sampled_from(
    [CALL, PARIS, "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "weather", "{", "}", "[", "]", '"', ",", ":", "<tool_call>",
     "<function=weather>", "<parameter=city>", "</parameter>", "</function>", "<|python_tag|>", "(", ")", "=", "\\",
     " ", "\n", "1", "null", "now", '{"name": "now"', '"arguments": ', "```json\n", "<|python_start|>", ";"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), st.lists(PARTS, max_size=9).map("".join))
def test_no_text_breaks_a_parser_and_without_calls_none_of_it_is_lost(format_: str, text: str) -> None:
    content, calls = content_and_calls(format_, text)
    assert calls or content == text
