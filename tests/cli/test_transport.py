"""What clients come through: a unix socket, TLS, a proxy's path, pages in a browser, and heads of any size."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from aril.cli import main
from aril.server.config import ServerConfig
from builders.commands import SMALL, Files
from builders.processes import Running, started
from builders.web import Authority

MOST_HEAD = ServerConfig().h11_max_incomplete_event_size
PAGE = "https://page.example"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uds") / "aril.sock"


@pytest.fixture(scope="module")
def server(files: Files, place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One behind a unix socket, a proxy and a page; the file of a server before it is still there."""
    with socket.socket(socket.AF_UNIX) as before:
        before.bind(str(place))
    flags = [*SMALL, "--served-model-name", "tiny", "--uds", str(place), "--root-path", "/llm/"]
    flags += ["--allowed-origins", json.dumps([PAGE]), "--allowed-methods", "POST"]
    with started(files.model, tmp_path_factory.mktemp("state"), flags) as running:
        yield running


def test_a_unix_socket_serves(server: Running) -> None:
    assert server.models() == ["tiny"]
    assert server.answers("tiny") == 200


def test_a_socket_in_use_is_refused(server: Running, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/nowhere", "--uds", str(place)]) == 1
    assert "another server listens at" in capsys.readouterr().err
    assert server.answers("tiny") == 200


def test_a_path_that_a_proxy_adds_is_known_with_and_without_it(server: Running) -> None:
    assert server.http.get("/llm/v1/models").json() == server.http.get("/v1/models").json()
    assert server.http.get("/llm/openapi.json").json()["servers"] == [{"url": "/llm"}]


def test_only_the_pages_that_may_ask_are_told_so(server: Running) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    welcome = server.http.options("/v1/completions", headers={"Origin": PAGE, **asked})
    assert (welcome.status_code, welcome.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "POST" in welcome.headers["access-control-allow-methods"]
    stranger = server.http.options("/v1/completions", headers={"Origin": "https://other.example", **asked})
    assert (stranger.status_code, stranger.headers.get("access-control-allow-origin")) == (400, None)
    refusal = server.http.post("/v1/completions", headers={"Origin": PAGE}, content=b"{")
    assert (refusal.status_code, refusal.headers["access-control-allow-origin"]) == (400, PAGE)
    assert "x-request-id" in refusal.headers["access-control-expose-headers"]


def sent_to(place: Path, parts: bytes) -> tuple[bytes, bytes]:
    """Head and body of all that the server answers to `parts`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(place))
        connection.sendall(parts)
        head, _, body = b"".join(iter(lambda: connection.recv(1 << 16), b"")).partition(b"\r\n\r\n")
    return head, body


def test_a_head_of_64_kb_is_read(server: Running) -> None:
    assert server.http.get("/v1/models", headers={"x-huge": "a" * (64 << 10)}).status_code == 200


def test_a_head_without_end_is_told_to_be_too_large(server: Running, place: Path) -> None:
    start = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nx-huge: "
    head, body = sent_to(place, start + b"a" * (MOST_HEAD + 1 - len(start)))
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "headers_too_large"
    assert server.answers("tiny") == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"not http at all\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    ],
    ids=["words", "no host", "length", "chunk", "tls"],
)
def test_what_is_no_request_is_refused_in_openais_shape(server: Running, place: Path, sent: bytes) -> None:
    head, body = sent_to(place, sent)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_http"
    assert b"x-request-id: " in head
    assert server.answers("tiny") == 200


def test_the_socket_goes_with_its_server(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with started(files.model, tmp_path / "state", [*SMALL, "--uds", str(path)]) as running:
        assert path.is_socket()
        running.stop()
    assert not path.exists()


def test_tls_with_certificates_on_both_sides(files: Files, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, ours = authority.pair("127.0.0.1"), authority.pair("client")
    flags = ["--ssl-certfile", str(pair), "--ssl-ca-certs", str(authority.file), "--ssl-cert-reqs", "2"]
    known = ssl.create_default_context(cafile=authority.file)
    known.load_cert_chain(ours)
    with started(files.model, tmp_path / "state", [*SMALL, *flags], verify=known) as running:
        assert running.url.startswith("https://127.0.0.1:")
        assert len(running.models()) == 1
        stranger = ssl.create_default_context(cafile=authority.file)
        with httpx.Client(base_url=running.url, verify=stranger) as http, pytest.raises(httpx.TransportError):
            http.get("/health")


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates that are right and wrong."""
    folder = tmp_path_factory.mktemp("papers")
    authority = Authority(folder)
    shutil.copy(authority.pair("a"), folder / "good.pem")
    shutil.copy(authority.pair("b"), folder / "other.pem")
    (folder / "text.pem").write_text("no certificate")
    return folder


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--ssl-certfile {0}/none.pem", "--ssl-certfile {0}/none.pem: No such file or directory"),
        ("--ssl-certfile {0}/good.pem --ssl-keyfile {0}/none.pem", "--ssl-keyfile {0}/none.pem: No such file"),
        ("--ssl-certfile {0}/good.pem --ssl-keyfile {0}/other.pem", "is not the key of --ssl-certfile {0}/good.pem"),
        ("--ssl-certfile {0}/text.pem", "no certificate with its key"),
        ("--ssl-certfile {0}/good.pem --ssl-ca-certs {0}/text.pem", "--ssl-ca-certs {0}/text.pem: no certificates"),
        ("--ssl-certfile {0}/good.pem --ssl-cert-reqs 2", "--ssl-cert-reqs 2 needs --ssl-ca-certs"),
        ("--ssl-keyfile {0}/good.pem", "--ssl-keyfile needs --ssl-certfile"),
        ("--ssl-certfile {0}/good.pem --ssl-cert-reqs 5", "--ssl-cert-reqs 5: there are 0, 1, 2"),
        ("--uds {0}", "there is something else of that name"),
        ("--uds {0}/none/s", "cannot listen there"),
        ("--root-path llm", "--root-path llm: it takes a path such as /llm"),
        ("--allowed-origins [1]", "--allowed-origins ['[1]']: it takes a list of strings"),
        ("--max-queued-requests -1", "--max-queued-requests -1 is out of range; it takes 0 or more"),
        ("--request-timeout 0", "--request-timeout 0.0 is out of range"),
        ("--access-log xml", "--access-log xml: there are json, text, off"),
    ],
)
def test_what_is_wrong_with_a_flag_is_said_in_a_line(
    papers: Path, flags: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = flags.format(papers).split()
    assert main(["serve", "/nowhere", "--port", "0", "--state-dir", str(papers / "state"), *given]) == 2
    error = capsys.readouterr().err.strip()
    assert said.format(papers) in error
    assert len(error.splitlines()) == 1
