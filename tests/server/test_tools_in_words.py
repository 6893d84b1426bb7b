"""Chat templates that know no tools, and models whose marks are special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aril.core.errors import InvalidRequest
from aril.engine.templates import render
from aril.engine.text import Text
from aril.models.source import locate
from aril.server.config import ServerConfig
from aril.server.formats import Formats
from aril.server.prompts import written
from aril.server.speech.calls import taught_by
from builders.parrot import make_parrot
from builders.serving import speaking

NOW: Any = {"type": "function", "function": {"name": "now", "description": "The time"}}
MESSAGES: Any = [{"role": "user", "content": "what time is it?"}]
CALL = '{"name": "now", "arguments": {}}'
SCRIPTS = {
    "bare": '{"name": "now", "arguments": {"zone": "CET"}}',
    "marked": '<tool_call>\n{"arguments": {"zone": "UTC"}, "name": "now"}\n</tool_call>',
    "list": '[{"name": "now"}, {"name": "now", "arguments": {"zone": "MEZ"}}]',
    "json": '{"time": 12}',
}
GEMMA = "ik_llamacpp__google-gemma-2-2b-it.jinja"
CANNOT = {
    "chujiezheng__granite-3.0-instruct": "it has roles of its own for calls and results",
    "ik_llamacpp__MiroThinker": "it names a variable that nobody sets",
}
SPECIAL = ("[TOOL_CALLS]", "[ARGS]", "[OTHER]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_parrot(tmp_path_factory.mktemp("words") / "model", SCRIPTS)


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with speaking(folder) as url:
        yield url


def choice(url: str, say: str, **fields: Any) -> Any:
    body = {"model": "tiny", "messages": MESSAGES, "tools": [NOW], "temperature": 0, "max_tokens": 100}
    answer = httpx.post(
        f"{url}/v1/chat/completions", json={**body, "chat_template_kwargs": {"say": say}, **fields}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def prompt_of(url: str, **fields: Any) -> str:
    tokens = httpx.post(f"{url}/tokenize", json={"messages": MESSAGES, **fields}).json()["tokens"]
    return str(httpx.post(f"{url}/detokenize", json={"tokens": tokens}).json()["prompt"])


def test_the_template_is_tried_out(folder: Path) -> None:
    assert not Text.load(locate(str(folder))).shows_tools()
    shown = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    assert Text.load(locate(str(folder)), chat_template=shown).shows_tools()
    assert Text.load(locate(str(folder)), chat_template="{{ raise_exception('no') }}").shows_tools()


def test_tools_are_told_in_a_system_message(url: str) -> None:
    prompt = prompt_of(url, tools=[NOW])
    assert prompt.startswith("<|im_start|>system\n")
    assert json.dumps(NOW["function"]) in prompt
    assert prompt.index("</tools>") < prompt.index("what time is it?")


def test_tools_follow_what_the_system_message_says(url: str) -> None:
    prompt = prompt_of(url, messages=[{"role": "system", "content": "Be brief."}, *MESSAGES], tools=[NOW])
    assert prompt.count("system\n") == 1
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions.")


@pytest.mark.parametrize("tools", [None, [], [NOW]])
def test_calls_and_results_are_told_as_text(url: str, tools: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
        {"role": "tool", "tool_call_id": "1", "content": "later"},
    ]
    prompt = prompt_of(url, messages=messages, tools=tools)
    block = f"<tool_call>\n{CALL}\n</tool_call>"
    results = "<tool_response>\nnoon\n</tool_response>\n<tool_response>\nlater\n</tool_response>"
    assert f"<|im_start|>assistant\n{block}\n{block}<|im_end|>\n<|im_start|>user\n{results}<|im_end|>" in prompt


@pytest.mark.parametrize(
    ("say", "arguments"),
    [("bare", ['{"zone": "CET"}']), ("marked", ['{"zone": "UTC"}']), ("list", ["{}", '{"zone": "MEZ"}'])],
)
def test_what_the_words_ask_for_is_heard(url: str, say: str, arguments: list[str]) -> None:
    found = choice(url, say)
    assert [call["function"]["arguments"] for call in found["message"]["tool_calls"]] == arguments
    assert (found["message"]["content"], found["finish_reason"]) == (None, "tool_calls")


def test_an_answer_in_json_is_no_call(url: str) -> None:
    assert choice(url, "json")["message"]["content"] == SCRIPTS["json"]


def test_marks_that_are_special_tokens_are_heard_and_others_stay_hidden(tmp_path: Path) -> None:
    scripts = {"call": "One mo[OTHER]ment.[TOOL_CALLS]now[ARGS]{}"}
    folder = make_parrot(tmp_path / "model", scripts, special=SPECIAL)
    with speaking(folder, tool_call_parser="mistral") as url:
        found = choice(url, "call")
        assert found["message"]["content"] == "One moment."
        [call] = found["message"]["tool_calls"]
        assert (call["function"], len(call["id"])) == ({"name": "now", "arguments": "{}"}, 9)
        plain = choice(url, "call", tools=None)
        assert plain["message"]["content"] == "One moment.now{}"


@pytest.mark.parametrize("flag", ["tool_call_parser", "reasoning_parser"])
def test_a_parser_that_there_is_not_is_refused_with_the_choices(flag: str) -> None:
    with pytest.raises(InvalidRequest, match=r"there are .*granite"):
        ServerConfig(**{flag: "thinking"})
    assert getattr(ServerConfig(**{flag: "granite"}), flag) == "granite"


TAUGHT = {
    "ik_llamacpp__NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "ik_llamacpp__Qwen-Qwen2.5-7B-Instruct": "hermes",
    "ik_llamacpp__MiroThinker": "hermes",
    "ik_llamacpp__Qwen3-Coder": "qwen3_coder",
    "ik_llamacpp__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
    "ik_llamacpp__meta-llama-Llama-3.1-8B-Instruct": "llama3_json",
    "ik_llamacpp__meta-llama-Llama-3.3-70B-Instruct": "llama3_json",
    "ik_llamacpp__mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "ik_llamacpp__unsloth-mistral-Devstral-Small-2507": "mistral",
    "chujiezheng__granite-3.0-instruct": "granite",
    "chujiezheng__chatml": "json",
    "ik_llamacpp__google-gemma-2-2b-it": "json",
    "ik_llamacpp__deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "json",
}


@pytest.mark.parametrize(("template", "format_"), TAUGHT.items())
def test_the_template_says_which_format_a_model_writes(shared_data: Path, template: str, format_: str) -> None:
    assert taught_by((shared_data / "chat_templates" / f"{template}.jinja").read_text()) == format_


@pytest.mark.parametrize(
    ("template", "shows"),
    [
        ("ik_llamacpp__Qwen-Qwen2.5-7B-Instruct", True),
        ("ik_llamacpp__Qwen3-Coder", True),
        ("ik_llamacpp__meta-llama-Llama-3.1-8B-Instruct", True),
        ("ik_llamacpp__unsloth-mistral-Devstral-Small-2507", True),
        ("chujiezheng__granite-3.0-instruct", True),
        ("chujiezheng__chatml", False),
        ("chujiezheng__vicuna", False),
    ],
)
def test_real_templates_show_tools_or_do_not(shared_data: Path, folder: Path, template: str, shows: bool) -> None:
    file = shared_data / "chat_templates" / f"{template}.jinja"
    assert Text.load(locate(str(folder)), chat_template=str(file)).shows_tools() is shows


def test_the_format_is_the_operators_choice_first(folder: Path) -> None:
    text = Text.load(locate(str(folder)))
    assert Formats.of(text, None, None).calls is not Formats.of(text, "hermes", None).calls


def test_a_template_that_knows_no_system_has_the_user_tell_of_tools(folder: Path, shared_data: Path) -> None:
    text = Text.load(locate(str(folder)), chat_template=str(shared_data / "chat_templates" / GEMMA))
    fields: dict[str, Any] = {"chat_template": None, "renderer": render}
    prompt = written(text, MESSAGES, [NOW], **fields)
    assert prompt.index('"now"') < prompt.index(MESSAGES[0]["content"])
    with pytest.raises(InvalidRequest, match="System role"):
        written(text, [{"role": "system", "content": "Be brief."}, *MESSAGES], [NOW], **fields)


@pytest.mark.parametrize("template", sorted(TAUGHT))
def test_a_conversation_with_calls_goes_through_real_templates(shared_data: Path, folder: Path, template: str) -> None:
    if template in CANNOT:
        pytest.skip(CANNOT[template])
    text = Text.load(locate(str(folder)), chat_template=str(shared_data / "chat_templates" / f"{template}.jinja"))
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "now", "arguments": {"zone": "CET"}}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "noon"},
    ]
    tool = {"type": "function", "function": {**NOW["function"], "parameters": {"type": "object", "properties": {}}}}
    prompt = written(text, messages, [tool], chat_template=None, renderer=render)
    assert "The time" in prompt
    assert "CET" in prompt
    assert "noon" in prompt
