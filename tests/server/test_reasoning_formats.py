"""Thoughts told from the answer, however they come and whoever opened them."""

from __future__ import annotations

import pytest
from aril.server.speech.base import Plain
from aril.server.speech.calls import REGISTRY as CALLS
from aril.server.speech.reasoning import REGISTRY
from builders.speech import Said, said_however_cut

THINK: dict[str, tuple[str, str]] = {
    "deepseek_r1": ("<think>", "</think>"),
    "granite": ("Here is my thought process:", "Here's my response:"),
    "mistral": ("[THINK]", "[/THINK]"),
    "qwen3": ("<think>", "</think>"),
}


def said(name: str, text: str, prompt: str = "", *, goes_on: bool = False) -> Said:
    format_ = REGISTRY[name]
    return said_however_cut(lambda: format_.listener(Plain(), format_.is_open_after(prompt, goes_on=goes_on)), text)


def test_every_format_has_its_case() -> None:
    assert sorted(THINK) == REGISTRY.names()


@pytest.mark.parametrize("name", THINK)
def test_thoughts_and_answer_are_told_apart(name: str) -> None:
    begin, end = THINK[name]
    assert said(name, f"\n{begin}\nHm, 2 < 3.\n\nSo \n{end}\n\nIt is 3.\n") == ("Hm, 2 < 3.\n\nSo", "It is 3.\n", [])


@pytest.mark.parametrize("name", THINK)
def test_a_mark_that_the_prompt_ends_with_has_opened_the_thoughts(name: str) -> None:
    begin, end = THINK[name]
    assert said(name, f"Hm.{end}So.", f"<|assistant|>{begin}\n") == ("Hm.", "So.", [])


@pytest.mark.parametrize("name", THINK)
def test_a_prompt_that_has_closed_the_thoughts_leaves_none(name: str) -> None:
    begin, end = THINK[name]
    assert said(name, "So.", f"{begin}\n\n{end}\n\n") == ("", "So.", [])


@pytest.mark.parametrize("name", THINK)
def test_thoughts_that_are_cut_short_are_thoughts(name: str) -> None:
    begin, end = THINK[name]
    assert said(name, f"{begin} Hm, {end[:-1]}") == (f"Hm, {end[:-1]}", "", [])


@pytest.mark.parametrize(("name", "reasoning", "content"), [("deepseek_r1", "So.", ""), ("qwen3", "", "So.")])
def test_without_a_mark_the_format_decides(name: str, reasoning: str, content: str) -> None:
    assert said(name, "So.") == (reasoning, content, [])


def test_a_mark_in_the_middle_of_an_answer_is_part_of_it() -> None:
    assert said("qwen3", "Write <think> and </think>.") == ("", "Write <think> and </think>.", [])
    assert said("qwen3", "<think>a</think>b<think>c</think>") == ("a", "b<think>c</think>", [])


def test_a_mark_that_a_user_wrote_opens_nothing() -> None:
    assert said("qwen3", "So.", "user: what is <think>?\nassistant:") == ("", "So.", [])


def test_an_answer_that_goes_on_amid_thoughts_does_so() -> None:
    assert said("qwen3", "Hm.</think>So.", "<think>Well", goes_on=True) == ("Hm.", "So.", [])
    assert said("qwen3", "So.", "<think>Well</think>And", goes_on=True) == ("", "So.", [])


def test_calls_are_heard_after_the_thoughts_and_not_in_them() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    found = said_however_cut(
        lambda: REGISTRY["qwen3"].listener(CALLS["hermes"].listener({"now": {}}, None), None),
        f"<think>{call}</think>\n{call}",
    )
    assert found == (call, "", [("now", "{}")])
