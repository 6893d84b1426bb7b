"""Strict tools that the model calls by itself: arguments are held to the schema, and its words are not touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from aril.server.speech.calls import REGISTRY
from builders.parrot import TEACHES_HERMES, make_parrot
from builders.serving import speaking

PARAMETERS: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOT_HELD: Any = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}, "required": ["a"]}
ULM = '{"city": "Ulm", "for": 9}'
PARIS = '{"city": "Paris", "days": 3}'
WORDS = "It is <fine> as <tool it is, {not} so <tool_cold!!"
SCRIPTS = {
    "wrong": f'Let me see.\n<tool_call>\n{{"name": "clouds", "arguments": {ULM}}}\n</tool_call>',
    "right": f'<tool_call>  {{"name": "clouds", "arguments": {PARIS}}}</tool_call> That is all of it, no?',
    "other": '<tool_call>\t{"name":"now","arguments":{"x":1}}\t</tool_call>',
    "words": WORDS,
}
FORMATS = {
    "granite": f'<|tool_call|> [{{"name": "clouds", "arguments": {ULM}}}]\n \n',
    "json": f'<tool_call>\n{{"name": "clouds", "arguments": {ULM}}}\n</tool_call>',
    "llama3_json": f'<|python_tag|>{{"name": "clouds", "parameters": {ULM}}}\n \n',
    "mistral": f"[TOOL_CALLS]clouds[ARGS]{ULM}\n \n",
}
CUT = ["llama4_pythonic", "pythonic", "qwen3_coder"]  # nothing tells there safely that a call has begun
MARKS = {"granite": ("<|tool_call|>",), "mistral": ("[TOOL_CALLS]", "[ARGS]")}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A model that says the SCRIPTS, in tokens that begin and end in the middle of marks."""
    folder = make_parrot(tmp_path_factory.mktemp("parrot") / "model", SCRIPTS, template=TEACHES_HERMES)
    with speaking(folder) as url:
        yield url


def tool(name: str = "clouds", *, strict: bool | None = True, parameters: Any = PARAMETERS) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}}


STRICT = [tool(), tool("now", strict=None, parameters=None)]
LOOSE = [tool(strict=False), tool("now", strict=None, parameters=None)]


def ask(url: str, say: str, **fields: Any) -> httpx.Response:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "what is it like?"}],
        "tools": STRICT,
        "temperature": 0,
        "max_tokens": 400,
        "return_token_ids": True,
        "chat_template_kwargs": {"say": say},
        **fields,
    }
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def choice(url: str, say: str, **fields: Any) -> Any:
    answer = ask(url, say, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def calls_of(found: Any) -> list[tuple[str, str]]:
    calls = found["message"].get("tool_calls", [])
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def fits(arguments: str) -> bool:
    found = json.loads(arguments)
    return list(found) == ["city", "days"] and found["city"] in ("Paris", "Rome") and found["days"] in (1, 2, 3)


def test_arguments_of_a_strict_tool_are_what_its_schema_takes(url: str) -> None:
    found = choice(url, "wrong")
    [(name, arguments)] = calls_of(found)
    assert (name, fits(arguments)) == ("clouds", True)
    assert found["message"]["content"].startswith("Let me see.")
    assert calls_of(choice(url, "wrong", tools=LOOSE)) == [("clouds", ULM)]


def test_a_call_that_fits_is_what_the_model_wrote(url: str) -> None:
    found = choice(url, "right")
    assert calls_of(found) == [("clouds", PARIS)]
    assert found["token_ids"] == choice(url, "right", tools=LOOSE)["token_ids"]
    assert (found["message"]["content"].strip(), found["finish_reason"]) == ("That is all of it, no?", "tool_calls")


@pytest.mark.parametrize("fields", [{}, {"min_tokens": 30, "max_tokens": 40}, {"ignore_eos": True, "max_tokens": 40}])
def test_words_are_those_that_the_model_would_have_said(url: str, fields: dict[str, Any]) -> None:
    alone = choice(url, "words", tools=LOOSE, **fields)
    with ThreadPoolExecutor(6) as pool:
        told = ["words", "wrong"] * 3
        found = list(pool.map(lambda say: choice(url, say, **({"max_tokens": 60} | fields)), told))
    assert [each["token_ids"] for each in found[::2]] == [alone["token_ids"]] * 3
    assert alone["message"]["content"].startswith(WORDS)


def test_a_tool_that_is_not_strict_has_any_arguments(url: str) -> None:
    assert calls_of(choice(url, "other")) == [("now", '{"x":1}')]


def test_a_strict_call_that_is_cut_says_length(url: str) -> None:
    found = choice(url, "right", max_tokens=8)
    [(name, arguments)] = calls_of(found)
    assert (name, found["finish_reason"], PARIS.startswith(arguments)) == ("clouds", "length", True)


def test_a_schema_that_cannot_be_held_to_is_refused_by_name(url: str) -> None:
    answer = ask(url, "words", tools=[STRICT[1], tool(parameters=NOT_HELD)])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[1].function.parameters")
    assert ask(url, "words", tools=[tool(parameters=NOT_HELD, strict=False)]).status_code == 200


def test_beams_and_strict_tools_do_not_go_together(url: str) -> None:
    answer = ask(url, "words", use_beam_search=True, n=2)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert "Part(" not in answer.text


def test_where_words_find_no_token_the_field_that_left_none_is_named(url: str) -> None:
    end = choice(url, "words")["token_ids"][-1]
    answer = ask(url, "words", allowed_token_ids=[end], min_tokens=3)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "allowed_token_ids"), answer.text


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_with_a_mark_is_held(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    held = REGISTRY[name].held
    assert held is not None
    folder = make_parrot(tmp_path_factory.mktemp(name) / "model", {"it": FORMATS[name]}, special=MARKS.get(name, ()))
    with speaking(folder, tool_call_parser=name) as url:
        answer = ask(url, "it", parallel_tool_calls=False)
    [(called, arguments)] = calls_of(answer.json()["choices"][0])
    assert (called, fits(arguments)) == ("clouds", True)
    assert answer.headers.get("x-aril-ignored-fields") == (None if held.everywhere else "tools.function.strict")


@pytest.mark.parametrize("name", CUT)
def test_where_no_call_can_be_told_safely_the_header_says_so(name: str, url: str, request: Any) -> None:
    folder = make_parrot(request.getfixturevalue("tmp_path") / "model", {"it": "It is fine."})
    with speaking(folder, tool_call_parser=name) as elsewhere:
        answers = [ask(elsewhere, "it"), ask(elsewhere, "it", tools=LOOSE), ask(url, "words")]
    assert [answer.headers.get("x-aril-ignored-fields") for answer in answers] == ["tools.function.strict", None, None]


def test_every_format_is_held_or_says_so() -> None:
    assert sorted([*FORMATS, *CUT, "hermes"]) == REGISTRY.names()
