"""Clients that send heads and bodies slowly, oddly, or not at all: none keeps a connection for nothing, and what they
send means the same, whichever process answers."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aril.server.patience import LEAST
from builders.commands import SMALL, Files
from builders.processes import ADMIN_KEY, Running, started

BRIEF = ("--timeout-head", "1", "--timeout-body", "2", "--timeout-keep-alive", "3", "--served-model-name", "tiny")
PAUSE = 0.15  # seconds between two parts of what comes slowly
BODY = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1}).encode()
UPLOAD = b'--x\r\nContent-Disposition: form-data; name="files"; filename="adapter_model.safetensors"\r\n\r\n'
START = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
KEY = f"Authorization: Bearer {ADMIN_KEY}\r\n".encode()


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "workers"])
def server(files: Files, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Running]:
    flags = [*SMALL, *BRIEF, "--api-server-count", request.param]
    with started(files.model, tmp_path_factory.mktemp("slow") / "state", flags) as found:
        yield found


@contextmanager
def connected(server: Running) -> Iterator[socket.socket]:
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        yield connection


def rest_of(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def told(server: Running, first: bytes, rest: Iterable[bytes] = ()) -> bytes:
    """What the server says to `first`, and to the parts of `rest`, which come slowly until it says anything."""
    with connected(server) as connection:
        connection.sendall(first)
        for part in rest:
            if select.select([connection], [], [], PAUSE)[0]:
                break
            connection.sendall(part)
        return rest_of(connection)


def head(path: str, length: int, *, last: bool = True) -> bytes:
    close = b"Connection: close\r\n" if last else b""
    kind = b"Content-Type: multipart/form-data; boundary=x\r\n" if path.startswith("/admin") else b""
    lines = b"POST %s HTTP/1.1\r\nHost: a\r\n%s%s%sContent-Length: %d\r\n\r\n"
    return lines % (path.encode(), KEY, kind, close, length)


@pytest.mark.parametrize("rest", [(), repeat(b"a")], ids=["stalls", "drips"])
def test_a_head_that_does_not_end_is_a_408(server: Running, rest: Iterable[bytes]) -> None:
    answer = told(server, START + b"x-slow: ", rest)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_slow"


def test_a_head_after_an_answer_has_no_longer(server: Running) -> None:
    with connected(server) as connection:
        connection.sendall(head("/v1/completions", len(BODY), last=False) + BODY)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        connection.sendall(START)
        assert b"HTTP/1.1 408 " in rest_of(connection)


@pytest.mark.parametrize("rest", [(), repeat(b" ")], ids=["stalls", "drips"])
@pytest.mark.parametrize(
    ("path", "begun"), [("/v1/completions", BODY), ("/v1/responses", BODY), ("/admin/v1/adapters", UPLOAD)]
)
def test_a_body_that_does_not_come_is_a_408(server: Running, path: str, begun: bytes, rest: Iterable[bytes]) -> None:
    answer = told(server, head(path, 10_000, last=False) + begun, rest)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer.lower()
    assert b"too_slow" in answer


def test_a_body_may_be_as_slow_as_it_likes_while_it_comes(server: Running) -> None:
    parts = 20  # take longer than a body may stall
    padded = BODY + b" " * (parts * LEAST // 4)
    rest = (padded[at : at + LEAST // 4] for at in range(0, len(padded), LEAST // 4))
    assert told(server, head("/v1/completions", len(padded)), rest).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_nobody_reads_keeps_no_connection(server: Running) -> None:
    lost = b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 10000\r\n\r\n"
    with connected(server) as connection, suppress(ConnectionError):
        connection.sendall(lost)
        for part in repeat(b" "):
            if select.select([connection], [], [], PAUSE)[0] and not connection.recv(1 << 16):
                break
            connection.sendall(part)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (START + b"Content-Type: text/plain\r\nConnection: close\r\nContent-Length: 16000000\r\n\r\n", 415),
        (b"GET / HTTP/1.1\r\nHost: a\r\nx-large: ", 431),
    ],
)
def test_who_sends_all_before_it_reads_hears_what_it_was_told(server: Running, lines: bytes, status: int) -> None:
    with connected(server) as connection:
        connection.sendall(lines + b"x" * 16_000_000)
        assert rest_of(connection).startswith(b"HTTP/1.1 %d " % status)


def test_a_body_whose_length_is_told_twice_is_the_last_on_its_connection(server: Running) -> None:
    for path in ("/v1/completions", "/v1/responses"):
        lines = head(path, 4, last=False).rstrip() + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
        answers = told(server, lines + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY) + head("/version", 0))
        assert answers.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in answers.lower()


def test_chunks_that_are_none_after_the_answer_close_the_connection(server: Running) -> None:
    begun = b"Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    with connected(server) as connection:
        connection.sendall(START + KEY + begun)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 415 ")
        connection.sendall(b"none\r\n")
        assert b"HTTP/1.1" not in rest_of(connection)
    assert "Traceback" not in Path(f"/proc/{server.pid}/fd/2").read_text()


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /version?a#b", 200),
        ("GET /version#b", 404),
        ("GET /version?" + "a" * 70_000, 200),
        ("GET /v1/responses/" + "a" * 70_000, 404),
        ("GET /v1/../version", 404),
        ("get /version", 405),
    ],
)
def test_a_target_is_handed_on_to_the_letter(server: Running, line: str, status: int) -> None:
    lines = b"%s HTTP/1.1\r\nHost: a\r\n%sConnection: close\r\n\r\n" % (line.encode(), KEY)
    assert told(server, lines).startswith(b"HTTP/1.1 %d " % status)


def test_a_connection_without_a_word_is_not_kept(server: Running) -> None:
    with connected(server) as connection:
        assert rest_of(connection) == b""
