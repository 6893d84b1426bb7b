"""Requests that have broken servers of this kind before: odd bytes, odd numbers, odd names."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from builders.serving import Served

BODY: dict[str, Any] = {"model": "tiny", "prompt": "the dog", "max_tokens": 2, "temperature": 0}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
COUNTS = ("n", "max_tokens", "min_tokens", "top_k", "seed", "priority", "prompt_logprobs")


def sent(served: Served, *parts: bytes) -> bytes:
    """All that the server answers to `parts`, each of which is a packet of its own."""
    place = urlsplit(served.url)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def head_of(body: bytes, *more: bytes) -> bytes:
    lines = [b"POST /v1/completions HTTP/1.1", b"Host: aril", b"Connection: close", *more]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", b""])


def param_of(http: httpx.Client, path: str, content: bytes) -> str:
    answer = http.post(path, content=content)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["param"])


def test_a_body_may_come_byte_by_byte(served: Served) -> None:
    body = json.dumps(BODY).encode()
    answer = sent(served, head_of(body), *(body[at : at + 1] for at in range(len(body))))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"text_completion" in answer


def test_a_huge_head_is_read_or_refused_and_harms_nobody(served: Served, http: httpx.Client) -> None:
    body = json.dumps(BODY).encode()
    answer = sent(served, head_of(body, b"X-Huge: " + b"a" * (64 << 10)), body)
    assert answer.split(b"\r\n")[0].split()[1] in (b"200", b"400", b"431")
    assert http.post("/v1/completions", json=BODY).status_code == 200


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", ["true", "false", "1.5", '"3"', "[]"])
def test_what_is_no_count_is_refused_by_name(http: httpx.Client, name: str, value: str) -> None:
    raw = json.dumps({**BODY, name: 0}).replace(f'"{name}": 0', f'"{name}": {value}').encode()
    assert param_of(http, "/v1/completions", raw) == name


@pytest.mark.parametrize("name", ["n", "max_tokens", "min_tokens", "prompt_logprobs", "logprobs"])
def test_a_negative_count_is_refused_by_name(http: httpx.Client, name: str) -> None:
    assert param_of(http, "/v1/completions", json.dumps({**BODY, name: -1}).encode()) == name


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    ("text", "param"),
    [
        ('"temperature": %s', "temperature"),
        ('"logit_bias": {"5": %s}', "logit_bias"),
        ('"seed": %s', "seed"),
    ],
)
def test_a_number_that_is_none_is_refused_by_name(http: httpx.Client, text: str, param: str, value: str) -> None:
    raw = f"{json.dumps(BODY)[:-1]}, {text % value}}}"
    assert param_of(http, "/v1/completions", raw.encode()) == param


@pytest.mark.parametrize("name", ["chat_template_kwargs", "metadata", "x"])
def test_a_number_that_is_none_is_no_json_where_anything_goes(http: httpx.Client, name: str) -> None:
    raw = f'{json.dumps(CHAT)[:-1]},\n"{name}": {{"deep": [NaN]}}}}'
    error = http.post("/v1/chat/completions", content=raw).json()["error"]
    assert error["code"] == "invalid_json"
    assert "line 2" in error["message"]
    assert http.post("/v1/chat/completions", content=raw.replace("NaN", '"NaN"')).status_code == 200


def test_malformed_json_says_where(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", content=b'{"model": "tiny",\n "prompt": oops}')
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_json")
    assert "line 2 column 12" in error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_a_wrong_method_is_told_the_right_one(http: httpx.Client, path: str, method: str) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", BODY), ("/v1/chat/completions", CHAT)])
def test_fields_that_nothing_was_done_with_are_listed(
    http: httpx.Client, path: str, body: dict[str, Any], stream: bool
) -> None:
    odd = {"metadata": {}, "store": False, "new\r\nline, \u00e9": 1, "length_penalty": 1.0, "suffix": None, "x": None}
    answer = http.post(path, json={**body, "stream": stream, **odd})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-aril-ignored-fields"] == "metadata,store,new%0D%0Aline%2C%20%C3%A9"


def test_where_every_field_counts_nothing_is_listed(http: httpx.Client) -> None:
    assert "x-aril-ignored-fields" not in http.post("/v1/completions", json=BODY).headers
    many = {f"field{at}": 1 for at in range(10_000)}
    assert len(http.post("/v1/completions", json={**BODY, **many}).headers["x-aril-ignored-fields"]) == 1000


def test_two_requests_with_the_same_id_are_two(http: httpx.Client) -> None:
    def ask(_: int) -> Any:
        asked = {**BODY, "request_id": "same"}
        return http.post("/v1/completions", json=asked, headers={"x-request-id": "same"}).json()

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(ask, range(2)))
    assert found[0]["id"] != found[1]["id"]
    assert found[0]["choices"] == found[1]["choices"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("header", "field", "told"),
    [("from-header", None, "from-header"), (None, "from-body", "from-body"), ("from-header", "b", "from-header")],
)
def test_a_request_id_comes_back(
    http: httpx.Client, header: str | None, field: str | None, told: str, stream: bool
) -> None:
    headers = {} if header is None else {"X-Request-Id": header}
    for path, body in (("/v1/completions", BODY), ("/v1/chat/completions", CHAT)):
        answer = http.post(path, json={**body, "request_id": field, "stream": stream}, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers.get_list("x-request-id") == [told]


def test_every_answer_has_a_request_id(http: httpx.Client) -> None:
    answers = [http.get("/health"), http.get("/v1/nothing"), http.post("/v1/completions", content=b"{")]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 3
    assert http.get("/v1/nothing", headers={"x-request-id": "a" * 200}).headers["x-request-id"] != "a" * 200


@pytest.mark.parametrize("odd", ["", "a b", "a\r\nb", "\u4e16", "a" * 129, 5])
def test_a_request_id_that_no_log_can_hold_is_refused(http: httpx.Client, odd: Any) -> None:
    assert param_of(http, "/v1/completions", json.dumps({**BODY, "request_id": odd}).encode()) == "request_id"


def test_scores_of_a_prompt_that_would_fill_the_answer_again_and_again_are_refused(http: httpx.Client) -> None:
    asked = {"model": "tiny", "prompt": [5] * 200, "max_tokens": 1, "prompt_logprobs": 20, "n": 128}
    error = http.post("/v1/completions", json=asked).json()["error"]
    assert error["param"] == "prompt_logprobs"
    assert http.post("/v1/completions", json={**asked, "n": 2}).status_code == 200
