"""`suffix` of completions on a model that fills in the middle; test_errors.py has one that cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from aril.admin_api.catalog import AdapterCatalog
from aril.admin_api.residency import Residency
from aril.engine.aio import AsyncEngine
from aril.server.app import create_app
from builders.answers import GREEDY
from builders.engines import make_engine
from builders.models import make_model, make_tokenizer
from builders.serving import listening

PREFIX, SUFFIX, MIDDLE, PAD = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server whose tokenizer has the marks of Qwen2.5-Coder."""
    folder = make_model(tmp_path_factory.mktemp("coder"))
    tokenizer = make_tokenizer(vocab_size=508)
    tokenizer.add_special_tokens({"additional_special_tokens": [PREFIX, SUFFIX, MIDDLE, PAD]})
    tokenizer.save_pretrained(folder)
    engine = AsyncEngine(make_engine(folder, served_model_name="tiny"))
    app = create_app(engine, AdapterCatalog("tiny", Residency(engine)))
    with listening(app) as url, httpx.Client(base_url=url, timeout=60) as session:
        yield session
    asyncio.run(engine.close())


def ask(coder: httpx.Client, **fields: Any) -> httpx.Response:
    return coder.post("/v1/completions", json={**GREEDY, "max_tokens": 6, "return_token_ids": True, **fields})


@pytest.mark.parametrize("prompt", ["def f(", ""])
def test_a_suffix_asks_for_what_stands_between(coder: httpx.Client, prompt: str) -> None:
    choice = ask(coder, prompt=prompt, suffix=" return x").json()["choices"][0]
    shown = coder.post("/detokenize", json={"tokens": choice["prompt_token_ids"]}).json()["prompt"]
    assert shown == f"{PREFIX}{prompt}{SUFFIX} return x{MIDDLE}"
    written = ask(coder, prompt=shown).json()["choices"][0]
    assert choice["token_ids"] == written["token_ids"]


def test_each_of_several_prompts_is_filled_in(coder: httpx.Client) -> None:
    together = ask(coder, prompt=["a", "b"], suffix="c").json()["choices"]
    alone = [ask(coder, prompt=prompt, suffix="c").json()["choices"][0] for prompt in "ab"]
    assert [choice["token_ids"] for choice in together] == [choice["token_ids"] for choice in alone]


def test_the_middle_ends_where_the_model_says_so(coder: httpx.Client) -> None:
    (pad,) = coder.post("/tokenize", json={"prompt": PAD}).json()["tokens"]
    choice = ask(coder, prompt="a", suffix="b", logit_bias={str(pad): 100}).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", pad)


def test_an_empty_suffix_is_none(coder: httpx.Client) -> None:
    assert ask(coder, prompt="a", suffix="").json()["choices"] == ask(coder, prompt="a").json()["choices"]


@pytest.mark.parametrize("field", [{"echo": True}, {"truncate_prompt_tokens": 5}])
def test_what_speaks_of_one_prompt_is_refused(coder: httpx.Client, field: dict[str, Any]) -> None:
    answer = ask(coder, prompt="a", suffix="b", **field)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(field)))
