"""What a wrong request is told: OpenAI's error shape, the field at fault, and never a 5xx."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from aril.admin_api.catalog import AdapterCatalog
from aril.admin_api.residency import Residency
from aril.core.callers import DEFAULT_TENANT
from aril.engine.aio import AsyncEngine
from aril.server.app import create_app
from builders.engines import make_engine
from builders.models import make_model
from builders.serving import Served, listening
from fastapi import APIRouter
from openai import OpenAI

MESSAGES = [{"role": "user", "content": "hi"}]
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
WEATHER = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server whose KV cache holds less than the context of its model."""
    folder = make_model(tmp_path_factory.mktemp("tight"))
    engine = AsyncEngine(make_engine(folder, served_model_name="tiny", kv_cache_memory="30KiB"))
    app = create_app(engine, AdapterCatalog("tiny", Residency(engine)))
    with listening(app) as url, httpx.Client(base_url=url, timeout=60) as session:
        yield session
    asyncio.run(engine.close())


def strictly(schema: dict[str, Any]) -> dict[str, Any]:
    """The response_format that holds an answer to `schema`."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


CHAT_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"messages": "hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [*MESSAGES, {"role": "user", "content": 5}]}, "messages[1].content"),
    ({"messages": [IMAGE]}, "messages[0].content[0]"),
    ({"model": None}, "model"),
    ({"max_tokens": "10"}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_completion_tokens": 5000}, "max_completion_tokens"),
    ({"min_tokens": 10**30}, "min_tokens"),
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"n": 0}, "n"),
    ({"n": 10**9}, "n"),
    ({"seed": 10**30}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop"),
    ({"stop": ["a"] * 33}, "stop"),
    ({"stop": ["a" * 8193]}, "stop"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"99999": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    ({"priority": "high"}, "priority"),
    ({"functions": [WEATHER["function"]]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "response_format"),
    ({"response_format": strictly({"not": {"type": "string"}})}, "response_format.json_schema.schema"),
    ({"guided_json": {"type": "object"}}, "guided_json"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"self": "x"}}, "chat_template_kwargs"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs"),
    ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "("}, "stream": True}, "structured_outputs"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs"),
    ({"structured_outputs": {"json": {"type": "strnig"}}}, "structured_outputs"),
    ({"structured_outputs": {"grammar": "start: @"}}, "structured_outputs"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
    ({"use_beam_search": True, "stream": True}, "stream"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"reasoning_effort": "a lot"}, "reasoning_effort"),
]
COMPLETION_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 5}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [10**6]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [5] * 256}, "prompt"),
    ({"prompt": ["a"] * 3000}, "prompt"),
    ({"prompt": ["a"] * 100, "n": 128}, "n"),
    ({"max_tokens": 256}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"min_tokens": 20}, "min_tokens"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"suffix": "b"}, "suffix"),
    ({"best_of": 3}, "best_of"),
]


@pytest.mark.parametrize(("fault", "param"), CHAT_FAULTS, ids=[f"{json.dumps(f)[:50]}" for f, _ in CHAT_FAULTS])
def test_a_fault_in_a_chat_request_is_named(http: httpx.Client, fault: dict[str, Any], param: str) -> None:
    answer = http.post("/v1/chat/completions", json={"model": "tiny", "messages": MESSAGES, **fault})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize(
    ("fault", "param"), COMPLETION_FAULTS, ids=[f"{json.dumps(f)[:50]}" for f, _ in COMPLETION_FAULTS]
)
def test_a_fault_in_a_completion_request_is_named(http: httpx.Client, fault: dict[str, Any], param: str) -> None:
    answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "hi", **fault})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "harmless",
    [
        {"response_format": {"type": "text"}},
        {"structured_outputs": {"regex": ".*", "structural_tag": None, "disable_additional_properties": False}},
        {"tools": [], "tool_choice": "none"},
        {"tools": [WEATHER], "tool_choice": "none"},
        {"user": "me", "metadata": {}, "store": False, "service_tier": "auto", "nobody_knows_this": 1},
        {"logit_bias": None, "stop": None, "seed": None, "temperature": None, "response_format": None},
        {"messages": [{"role": "user", "content": "hi", "name": "me"}]},
    ],
)
def test_what_does_not_change_the_answer_is_accepted(http: httpx.Client, harmless: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 1, **harmless}
    assert http.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b"[" * 100_000, b'{"a":"\\ud800"}', b'{"a":1' + b"0" * 5000 + b"}"],
    ids=["empty", "open", "list", "null", "number", "bytes", "deep", "surrogate", "long"],
)
def test_a_body_that_is_no_json_object_is_a_400(http: httpx.Client, body: bytes) -> None:
    answer = http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(http: httpx.Client, value: str) -> None:
    body = f'{{"model": "tiny", "prompt": "a", "temperature": {value}}}'
    assert http.post("/v1/completions", content=body).status_code == 400


def test_an_unknown_model_is_not_the_base(client: OpenAI) -> None:
    for model in ("gpt-4", "", "tin", "TINY", "org", "org/blue/"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.completions.create(model=model, prompt="hi")
        assert caught.value.code == "model_not_found"
        assert caught.value.param == "model"


def test_a_model_must_be_named(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": "hi"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


def test_an_adapter_that_is_withdrawn_is_a_404_at_once(served: Served, http: httpx.Client) -> None:
    green = served.catalog.seen(DEFAULT_TENANT, "green")
    served.catalog.put(DEFAULT_TENANT, "green", None)
    try:
        answer = http.post("/v1/completions", json={"model": "green", "prompt": "hi"})
    finally:
        served.catalog.put(DEFAULT_TENANT, "green", green)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_too_long_a_prompt_is_told_in_true_numbers(http: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": [5] * 200, "max_tokens": 100}
    error = http.post("/v1/completions", json=body).json()["error"]
    assert error["code"] == "context_length_exceeded"
    for number in ("256", "300", "200", "100", "56"):
        assert number in error["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": [5] * 20, "max_tokens": 20}),
        ("/v1/completions", {"prompt": [5] * 40}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "zebra " * 20_000}]}),
        ("/v1/embeddings", {"input": [5] * 40}),
    ],
)
def test_where_the_kv_cache_cuts_the_context_the_model_is_not_blamed(
    tight: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    error = tight.post(path, json={"model": "tiny", **fields}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith(
        "This model's maximum context length is 32 tokens, as this server's KV cache holds no more of its 512 "
        "(--kv-cache-memory). However, "
    )


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)])
def test_unknown_paths_and_methods_have_the_same_shape(http: httpx.Client, method: str, path: str, status: int) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_body_over_the_bound_is_refused(served: Served) -> None:
    app = create_app(served.engine, served.catalog, max_body=1000)
    with listening(app) as url, httpx.Client(base_url=url) as session:
        body = json.dumps({"model": "tiny", "prompt": "a" * 2000}).encode()
        assert session.post("/v1/completions", content=body).status_code == 413
        chunked = session.post("/v1/completions", content=iter([body[:500], body[500:]]))
        assert chunked.status_code == 413
        assert chunked.json()["error"]["code"] == "too_large"


def test_a_bug_is_an_answer_like_any_other(served: Served) -> None:
    router = APIRouter()

    @router.get("/bug")
    async def bug() -> None:
        raise RuntimeError("a secret of the insides")

    app = create_app(served.engine, served.catalog, routers=[router])
    with listening(app) as url, httpx.Client(base_url=url) as session:
        answer = session.get("/bug", headers={"x-request-id": "mine"})
        counted = session.get("/metrics").text
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] == "mine"
    assert 'aril_http_answers_total{route="/bug",status="500"}' in counted


def test_every_route_with_a_body_describes_it(http: httpx.Client) -> None:
    assert [http.get(page).status_code for page in ("/docs", "/redoc")] == [404, 404]  # theirs load foreign scripts
    paths = http.get("/openapi.json").json()["paths"]
    without = {path for path, told in paths.items() if "post" in told and "requestBody" not in told["post"]}
    assert without == {"/v1/responses/{response_id}/cancel"}  # which takes none
