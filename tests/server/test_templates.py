"""Chat templates: all that reaches one is what transformers would give it, and one from a request harms nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from aril.engine import templates
from aril.server.app import create_app
from builders.serving import Served, listening
from transformers import AutoTokenizer, PreTrainedTokenizerBase

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "na\u00efve \U0001f642?"}]
STARTED = [*MESSAGES, {"role": "assistant", "content": "It is"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
PAPER = {"title": "Seeds", "text": "An aril is a seed's coat."}
EVERYTHING = (
    "{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for paper in documents or [] %}[{{ paper.title }}: {{ paper.text }}]{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}:{{ message.content | trim }}<|im_end|>{% endfor %}"
    "{{ mood }}{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)
CASES: list[dict[str, Any]] = [
    {"messages": MESSAGES},
    {"messages": MESSAGES, "add_generation_prompt": False},
    {"messages": STARTED, "add_generation_prompt": False, "continue_final_message": True},
    {"messages": MESSAGES, "documents": [PAPER]},
    {"messages": MESSAGES, "tools": [TOOL]},
    {"messages": MESSAGES, "chat_template_kwargs": {"mood": "glad", "unused": [1]}},
    {"messages": MESSAGES, "chat_template_kwargs": {"text": 1, "renderer": 2, "variables": 3, "fields": 4, "mood": 5}},
    {"messages": STARTED, "tools": [TOOL], "documents": [PAPER, PAPER], "add_generation_prompt": False,
     "continue_final_message": True, "chat_template_kwargs": {"mood": ""}},
]  # fmt: skip
HOSTILE = {
    "a power": "{{ 10 ** (10 ** 9) }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "a text": "{{ 'x' * 10 ** 11 }}",
    "a width": "{{ '%99999999999d' | format(1) }}",
    "many texts": "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
    "itself": "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "nested": "{% if x %}" * 2000,
    "no template": "{% if %}",
    "insides": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a file": "{% include '/etc/passwd' %}",
    "division": "{{ 1 / 0 }}",
    "a refusal": "{{ raise_exception('no') }}",
}


@pytest.fixture(scope="module")
def trusting(served: Served) -> Iterator[httpx.Client]:
    """A server that lets requests bring their chat template."""
    app = create_app(served.engine, served.catalog, trusts_templates=True)
    with listening(app) as url, httpx.Client(base_url=url, timeout=60) as session:
        yield session


@pytest.fixture(scope="module")
def tokenizer(served: Served) -> PreTrainedTokenizerBase:
    """transformers' own reading of the served model."""
    return AutoTokenizer.from_pretrained(Path(served.engine.model.source))


def expected(tokenizer: PreTrainedTokenizerBase, asked: dict[str, Any], **more: Any) -> list[int]:
    """The tokens of apply_chat_template."""
    fields = {"add_generation_prompt": True, **asked, **more}
    variables = fields.pop("chat_template_kwargs", {})
    ids = tokenizer.apply_chat_template(fields.pop("messages"), tokenize=True, return_dict=False, **fields, **variables)
    return list(ids)


@pytest.mark.parametrize("asked", [asked for asked in CASES if "tools" not in asked])  # which are told in words here
def test_a_prompt_is_the_one_of_apply_chat_template(
    http: httpx.Client, tokenizer: PreTrainedTokenizerBase, asked: dict[str, Any]
) -> None:
    assert http.post("/tokenize", json=asked).json()["tokens"] == expected(tokenizer, asked)


@pytest.mark.parametrize("asked", CASES)
def test_a_template_of_the_request_renders_as_there(
    trusting: httpx.Client, tokenizer: PreTrainedTokenizerBase, asked: dict[str, Any]
) -> None:
    told = {**asked, "chat_template": EVERYTHING}
    found = trusting.post("/tokenize", json=told).json()["tokens"]
    assert found == expected(tokenizer, asked, chat_template=EVERYTHING)
    body = {**told, "model": "tiny", "max_tokens": 1, "return_token_ids": True}
    assert trusting.post("/v1/chat/completions", json=body).json()["prompt_token_ids"] == found


def test_without_the_flag_no_request_brings_a_template(http: httpx.Client) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = http.post(path, json={"model": "tiny", "messages": MESSAGES, "chat_template": EVERYTHING})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template")
        assert "--trust-request-chat-template" in answer.json()["error"]["message"]


@pytest.mark.parametrize("template", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_is_the_callers_fault_alone(trusting: httpx.Client, template: str) -> None:
    began = time.monotonic()
    answer = trusting.post("/tokenize", json={"messages": MESSAGES, "chat_template": template})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template"), answer.text
    assert time.monotonic() - began < templates.SECONDS + 10
    assert trusting.post("/tokenize", json={"messages": MESSAGES}).status_code == 200


@pytest.mark.parametrize("template", ["", "x" * 65537, 5])
def test_what_is_no_template_is_refused_by_name(trusting: httpx.Client, template: Any) -> None:
    answer = trusting.post("/tokenize", json={"messages": MESSAGES, "chat_template": template})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template")


def test_too_many_at_once_are_told_to_come_again_and_others_go_on(trusting: httpx.Client) -> None:
    def ask(template: str | None) -> int:
        body = {"messages": MESSAGES, "chat_template": template}
        return httpx.post(f"{trusting.base_url}/tokenize", json=body, timeout=60).status_code

    with ThreadPoolExecutor(8) as threads:
        hostile = [threads.submit(ask, HOSTILE["loops"]) for _ in range(6)]
        sound = [threads.submit(ask, None).result() for _ in range(10)]
        statuses = [one.result() for one in hostile]
    assert sound == [200] * 10
    assert set(statuses) == {400, 503}
