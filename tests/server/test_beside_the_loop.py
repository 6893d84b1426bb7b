"""No request holds up the event loop: what is much work is done on other threads, or refused before."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from aril.admin_api.catalog import AdapterCatalog
from aril.admin_api.residency import Residency
from aril.core.body import checked, parse
from aril.engine.aio import AsyncEngine
from aril.engine.grammar.asked import StructuredOutputs
from aril.engine.text import Text
from aril.server.app import create_app
from aril.server.aside import LARGE, LONG, MOST_LONG, Aside
from aril.server.completions import CompletionView
from aril.server.embeddings import _shown
from aril.server.logprobs import CompletionLogprobs
from aril.server.messages.asked import chat_of, unheeded_in
from aril.server.openapi import Documented
from aril.server.prompts import check_tokens, of_messages
from aril.server.responses.asked import chat_fields
from aril.server.responses.items import items_in
from aril.server.sampling import of_chat, of_completion
from aril.server.tool_use import schemas_of
from aril.server.writing import in_pieces
from builders.engines import make_engine
from builders.models import make_model
from builders.where import Where, watched

CONTEXT = 1024
LONG_CHAT = [{"role": "user", "content": "a" * LARGE}]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
SCHEMA = {"type": "object", "properties": {f"field{at}": {"type": "string"} for at in range(20)}}
TOOLS = [{"type": "function", "function": {"name": f"tool{at}", "parameters": SCHEMA}} for at in range(100)]
ENUM = {"type": "object", "properties": {"a": {"enum": [f"value {at}" for at in range(5_000)]}}, "required": ["a"]}
SCORED_CHAT = {"messages": [{"role": "user", "content": "a" * 900}], "max_tokens": 1}
SCORED = {"prompt": [5 + at % 100 for at in range(CONTEXT - 8)], "max_tokens": 1}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncEngine]:
    folder = make_model(tmp_path_factory.mktemp("beside") / "model", max_position_embeddings=CONTEXT)
    engine = AsyncEngine(make_engine(folder, served_model_name="tiny"))
    yield engine
    asyncio.run(engine.close())


def asked(engine: AsyncEngine, method: str, path: str, body: dict[str, Any]) -> tuple[httpx.Response, Where]:
    """The answer of a new application, and where it was worked out."""

    async def ask() -> tuple[httpx.Response, Where]:
        app = create_app(engine, AdapterCatalog("tiny", Residency(engine)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://aril") as client:
            content = json.dumps({"model": "tiny", **body}) if method == "POST" else None
            return await watched(client.request(method, path, content=content, timeout=120))

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("path", "body", "functions"),
    [
        ("/v1/completions", {"prompt": "a" * LARGE}, [parse]),
        ("/v1/completions", {"prompt": [5] * LARGE}, [parse, of_completion]),
        ("/v1/chat/completions", {**CHAT, "tools": TOOLS}, [parse, schemas_of, of_messages]),
        ("/v1/chat/completions", {**CHAT, "tools": TOOLS[:4]}, [schemas_of, Text.encode]),
        ("/v1/chat/completions", {**CHAT, "stop_token_ids": [5] * LARGE}, [parse, of_chat]),
        (
            "/v1/chat/completions",
            {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": ENUM}}},
            [parse, of_chat, StructuredOutputs._schema_text],
        ),
        ("/v1/embeddings", {"input": [5] * 100}, [check_tokens, _shown]),
        ("/v1/messages", {"messages": LONG_CHAT, "max_tokens": 1}, [parse, chat_of, checked]),
        ("/v1/messages/count_tokens", {"messages": LONG_CHAT}, [parse, chat_of, of_messages]),
        ("/v1/responses", {"input": LONG_CHAT}, [parse, items_in, chat_fields]),
        ("/tokenize", {"prompt": "a " * 100, "return_token_strs": True}, [Text.encode, Text.token_text, in_pieces]),
        ("/detokenize", {"tokens": [5] * 100}, [check_tokens, Text.decode, in_pieces]),
    ],
)
def test_a_large_request_is_read_and_checked_beside_the_loop(
    engine: AsyncEngine, path: str, body: dict[str, Any], functions: list[Callable[..., Any]]
) -> None:
    answer, where = asked(engine, "POST", path, body)
    assert answer.status_code in (200, 400), answer.text
    assert [function.__qualname__ for function in functions if not where.ran_beside(function)] == []


def test_blocks_of_a_large_message_are_looked_through_beside_the_loop(engine: AsyncEngine) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "a", "input_schema": ENUM}]}
    answer, where = asked(engine, "POST", "/v1/messages", {**body, "max_tokens": 1, "tool_choice": {"type": "none"}})
    assert answer.status_code == 200, answer.text
    assert where.ran_beside(unheeded_in)


@pytest.mark.parametrize(
    ("path", "body", "functions"),
    [
        ("/v1/completions", {**SCORED, "prompt_logprobs": 3}, [CompletionView._piece, in_pieces]),
        ("/v1/completions", {**SCORED, "echo": True, "logprobs": 3}, [CompletionLogprobs.take, in_pieces]),
        ("/v1/completions", {**SCORED, "echo": True, "logprobs": 3, "stream": True}, [in_pieces]),
        ("/v1/chat/completions", {**SCORED_CHAT, "prompt_logprobs": 3}, [in_pieces]),
    ],
)
def test_a_long_answer_is_written_beside_the_loop_and_says_the_same(
    engine: AsyncEngine, path: str, body: dict[str, Any], functions: list[Callable[..., Any]]
) -> None:
    answer, where = asked(engine, "POST", path, body)
    assert answer.status_code == 200, answer.text
    assert [function.__qualname__ for function in functions if not where.ran_beside(function)] == []
    first = answer.text.removeprefix("data: ").partition("\n")[0]
    assert first == json.dumps(json.loads(first), ensure_ascii=False, separators=(",", ":"))


def test_a_small_request_needs_no_thread_to_be_read(engine: AsyncEngine) -> None:
    answer, where = asked(engine, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert answer.status_code == 200, answer.text
    assert parse.__code__ in where.here


def test_the_openapi_document_is_made_beside_the_loop_and_once(engine: AsyncEngine) -> None:
    answer, where = asked(engine, "GET", "/openapi.json", {})
    assert "/v1/completions" in answer.json()["paths"]
    assert where.ran_beside(Documented.openapi)


def test_one_large_body_is_read_at_a_time() -> None:
    async def live() -> list[str]:
        aside, order, may_end = Aside(), list[str](), threading.Event()
        first = asyncio.ensure_future(aside.read(LARGE + 1, lambda: may_end.wait() and order.append("first")))
        second = asyncio.ensure_future(aside.read(LARGE + 1, lambda: order.append("second")))
        await aside.work(0, lambda: order.append("another's"))
        may_end.set()
        await asyncio.gather(first, second)
        return order

    assert asyncio.run(live()) == ["another's", "first", "second"]


def test_who_sends_little_does_not_wait_for_those_who_send_much() -> None:
    async def live() -> None:
        aside, may_end = Aside(), threading.Event()
        long = [asyncio.ensure_future(aside.work(LONG + 1, may_end.wait)) for _ in range(MOST_LONG + 100)]
        await asyncio.gather(*(aside.work(LONG, int) for _ in range(100)))
        may_end.set()
        await asyncio.gather(*long)

    asyncio.run(live())
