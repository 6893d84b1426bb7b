"""Reasoning over HTTP: told apart when the operator asks for it, before words, calls and forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from builders.parrot import TEACHES_NONE, make_parrot
from builders.serving import speaking

MESSAGES: Any = [{"role": "user", "content": "what is 1 + 2?"}]
NOW: Any = {"type": "function", "function": {"name": "now"}}
THOUGHTS = "Hm, 1 + 2. That must be 3."
SCRIPTS = {
    "thinks": f"<think>\n{THOUGHTS}\n</think>\n\nIt is three.",
    "calls<think>": 'Which day? </think>\n<tool_call>{"name": "now", "arguments": {}}</tool_call>',
    "goes on<think>": "and on it goes </think> So it is.",
    "at once": "Three.",
}
EFFORT = "{%- if reasoning_effort -%}{{ 'effort: ' + reasoning_effort }}{%- endif -%}"
REMEMBERS = EFFORT + TEACHES_NONE.replace(
    "message['content']", "(message.reasoning_content or '') + message['content']"
)
CHOICE = {"structured_outputs": {"choice": ["3", "three"]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_parrot(tmp_path_factory.mktemp("thinker") / "model", SCRIPTS, special=("<think>",), template=REMEMBERS)


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with speaking(folder, reasoning_parser="qwen3") as url:
        yield url


def ask(url: str, say: str, **fields: Any) -> httpx.Response:
    told = {"say": say}
    body = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 100, "chat_template_kwargs": told}
    return httpx.post(f"{url}/v1/chat/completions", json={**body, **fields}, timeout=60)


def choice(url: str, say: str, **fields: Any) -> Any:
    answer = ask(url, say, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def deltas(url: str, say: str, **fields: Any) -> list[dict[str, Any]]:
    lines = ask(url, say, stream=True, **fields).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return [event["choices"][0]["delta"] for event in events]


def test_thoughts_are_told_apart_under_both_names(url: str) -> None:
    message = choice(url, "thinks")["message"]
    assert message["content"] == "It is three."
    assert message["reasoning_content"] == message["reasoning"] == THOUGHTS


def test_a_stream_says_the_same_as_the_whole_answer(url: str) -> None:
    found = deltas(url, "thinks")
    assert "".join(delta.get("content", "") for delta in found) == "It is three."
    for name in ("reasoning_content", "reasoning"):
        assert "".join(delta.get(name, "") for delta in found) == THOUGHTS


def test_a_template_that_opens_the_thoughts_is_heeded(url: str) -> None:
    message = choice(url, "goes on<think>")["message"]
    assert (message["reasoning_content"], message["content"]) == ("and on it goes", "So it is.")


def test_thoughts_are_left_out_when_asked(url: str) -> None:
    message = choice(url, "thinks", include_reasoning=False)["message"]
    assert message == {"role": "assistant", "content": "It is three.", "refusal": None}
    assert not any("reasoning" in delta for delta in deltas(url, "thinks", include_reasoning=False))


def test_an_answer_without_thoughts_has_no_such_field(url: str) -> None:
    assert choice(url, "at once")["message"] == {"role": "assistant", "content": "Three.", "refusal": None}


def test_an_answer_that_is_cut_amid_thoughts_has_no_content(url: str) -> None:
    found = choice(url, "thinks", max_tokens=3)
    assert (found["message"]["content"], found["finish_reason"]) == ("", "length")
    assert THOUGHTS.startswith(found["message"]["reasoning_content"])


def test_calls_follow_thoughts(url: str) -> None:
    found = choice(url, "calls<think>", tools=[NOW])
    assert (found["message"]["reasoning_content"], found["message"]["content"]) == ("Which day?", None)
    assert [call["function"]["name"] for call in found["message"]["tool_calls"]] == ["now"]
    assert found["finish_reason"] == "tool_calls"


def test_without_the_flag_thoughts_are_part_of_the_answer(folder: Path) -> None:
    with speaking(folder) as url:
        assert choice(url, "thinks")["message"]["content"] == SCRIPTS["thinks"].removeprefix("<think>")  # it is special


@pytest.mark.parametrize("say", ["thinks", "goes on<think>"])
def test_a_form_begins_after_the_thoughts(url: str, say: str) -> None:
    free, held = (choice(url, say, **more) for more in ({}, CHOICE))
    assert held["message"]["content"] in ("3", "three")
    assert held["message"]["reasoning_content"] == free["message"]["reasoning_content"]
    assert held["finish_reason"] == "stop"


def test_an_answer_that_does_not_think_is_held_to_its_form_at_once(url: str) -> None:
    message = choice(url, "at once", **CHOICE)["message"]
    assert message["content"] in ("3", "three")
    assert "reasoning_content" not in message


def test_forced_calls_follow_thoughts_too(url: str) -> None:
    for tool_choice in ("required", NOW):
        message = choice(url, "thinks", tools=[NOW], tool_choice=tool_choice, parallel_tool_calls=False)["message"]
        assert message["reasoning_content"] == THOUGHTS
        [call] = message["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("now", {})


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_of_earlier_turns_reach_the_template_under_either_name(url: str, name: str) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "Three.", name: "Count. "}, *MESSAGES]
    tokens = httpx.post(f"{url}/tokenize", json={"messages": messages}).json()["tokens"]
    prompt = httpx.post(f"{url}/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert "<|im_start|>assistant\nCount. Three.<|im_end|>" in prompt


def test_an_effort_reaches_a_template_that_knows_it(url: str) -> None:
    def prompt(**fields: Any) -> str:
        tokens = ask(url, "at once", return_token_ids=True, **fields).json()["prompt_token_ids"]
        return str(httpx.post(f"{url}/detokenize", json={"tokens": tokens}).json()["prompt"])

    assert prompt(reasoning_effort="high").startswith("effort: high<|im_start|>")
    assert prompt(reasoning_effort=None).startswith("<|im_start|>")
