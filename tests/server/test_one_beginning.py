"""A prompt begins once: where the tokenizer adds a BOS and the chat template writes one, there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from aril.admin_api.catalog import AdapterCatalog
from aril.admin_api.residency import Residency
from aril.engine.aio import AsyncEngine
from aril.server.app import create_app
from builders.engines import make_engine
from builders.models import make_model
from builders.serving import listening
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

BEGIN = ("<|endoftext|>", 0)
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def beginning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server whose tokenizer adds BOS to every text, and whose chat template writes it too."""
    folder = make_model(tmp_path_factory.mktemp("beginning"))
    file = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.post_processor = TemplateProcessing(single=f"{BEGIN[0]} $A", special_tokens=[BEGIN])
    tokenizer.save(file)
    engine = AsyncEngine(make_engine(folder, served_model_name="tiny", chat_template=TEMPLATE))
    app = create_app(engine, AdapterCatalog("tiny", Residency(engine)))
    with listening(app) as url, httpx.Client(base_url=url, timeout=60) as session:
        yield session
    asyncio.run(engine.close())


def test_a_chat_begins_once(beginning: httpx.Client) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
    prompt = beginning.post("/v1/chat/completions", json=body).json()["prompt_token_ids"]
    assert prompt[0] == 0
    assert prompt.count(0) == 1
    assert beginning.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"] == prompt


def test_a_text_begins_once(beginning: httpx.Client) -> None:
    assert beginning.post("/tokenize", json={"prompt": "hi"}).json()["tokens"].count(0) == 1


def test_without_special_tokens_a_text_does_not_begin(beginning: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 1, "return_token_ids": True}
    prompts = [
        beginning.post("/v1/completions", json={**body, **more}).json()["choices"][0]["prompt_token_ids"]
        for more in ({}, {"add_special_tokens": False})
    ]
    assert prompts[0] == [0, *prompts[1]]
