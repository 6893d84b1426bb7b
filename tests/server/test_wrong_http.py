"""Requests that are wrong as HTTP, or whose bodies are not what they say: each is told so, and harms no other."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from builders.serving import Served

from .test_odd_requests import BODY, head_of, sent

RAW = json.dumps(BODY).encode()


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"])
def test_a_body_that_says_it_is_no_json_is_not_read(http: httpx.Client, kind: str) -> None:
    answer = http.post("/v1/completions", content=RAW, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.a+json", None]
)
def test_a_body_of_json_may_be_called_so(http: httpx.Client, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    assert http.post("/v1/completions", content=RAW, headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "DELETE", "TRACE", "BREW"])
@pytest.mark.parametrize(("path", "allowed"), [("/v1/completions", "POST"), ("/v1/models", "GET"), ("/health", "GET")])
def test_a_method_that_there_is_not_is_told_the_one_there_is(
    http: httpx.Client, method: str, path: str, allowed: str
) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v2/completions", "/v1/completions/x", "/%00", "/v1/%2e%2e/x"])
def test_a_path_that_there_is_not_is_a_404_in_openais_shape(http: httpx.Client, path: str) -> None:
    answer = http.post(path, json=BODY)
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b'{"model": "tiny" "prompt": "a"}', "line 1 column 18"),
        (b'{"model": "tiny",\n\n "prompt": "a",}', "line 3 column 16"),
        (b'{"model": "tiny", "prompt": "a', "line 1 column 30"),
        (b'{"model": "tiny", "prompt": "\xff"}', "line 1 column"),
        (b'{"model": "tiny", "prompt": "a"} x', "line 1 column 34"),
    ],
)
def test_malformed_json_is_told_where(http: httpx.Client, raw: bytes, place: str) -> None:
    error = http.post("/v1/completions", content=raw).json()["error"]
    assert error["code"] == "invalid_json"
    assert place in error["message"]


def test_of_a_field_that_stands_twice_the_last_holds(http: httpx.Client) -> None:
    raw = b'{"model": "nobody", "prompt": "a", "max_tokens": 1, "model": "tiny"}'
    assert http.post("/v1/completions", content=raw).json()["model"] == "tiny"


def test_a_body_in_chunks_is_read(served: Served) -> None:
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(RAW[at : at + 7]), RAW[at : at + 7]) for at in range(0, len(RAW), 7))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert sent(served, head, chunks + b"0\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("missing", [1, 10, 10**6])
def test_a_body_that_is_shorter_than_it_says_harms_nobody(served: Served, http: httpx.Client, missing: int) -> None:
    place = urlsplit(served.url)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(head_of(RAW + b" " * missing) + RAW)
        connection.shutdown(socket.SHUT_WR)
        assert b"200 OK" not in connection.recv(1 << 16)
    assert http.post("/v1/completions", json=BODY).status_code == 200


def test_what_follows_a_body_that_says_it_is_shorter_is_no_request(served: Served, http: httpx.Client) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (len(RAW) - 5)
    answers = sent(served, head + RAW + b"\r\n\r\n")
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert b" 200 OK" not in answers
    assert http.post("/v1/completions", json=BODY).status_code == 200


def test_requests_sent_at_once_are_answered_in_their_order(served: Served) -> None:
    def one(max_tokens: int, last: bool) -> bytes:
        body: dict[str, Any] = {**BODY, "max_tokens": max_tokens, "ignore_eos": True}
        raw = json.dumps(body).encode()
        close = b"Connection: close\r\n" if last else b""
        return b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n\r\n%s" % (close, len(raw), raw)

    answers = sent(served, one(3, False) + one(1, False) + one(2, True))
    found = [json.loads(part.partition(b"\r\n\r\n")[2]) for part in answers.split(b"HTTP/1.1 200 OK")[1:]]
    assert [answer["usage"]["completion_tokens"] for answer in found] == [3, 1, 2]
