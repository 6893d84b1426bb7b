"""The access log: a line for each request, of what it came to, and of nothing that should not be kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

import httpx
import pytest
from aril.admin_api.db import Database
from aril.admin_api.keyring import Keyring
from aril.admin_api.migrate import upgrade
from aril.admin_api.responses import Responses
from aril.core.bearer import digest_of
from aril.server.access_log import AccessLog
from aril.server.app import create_app
from aril.server.flights import Bounds, Flights
from aril.server.manners import Manners
from aril.server.records import MOST_TEXT
from builders.serving import Served, listening
from fastapi import APIRouter

from .test_flights import work

KEY = "the-one-key"
BODY: dict[str, Any] = {"model": "red", "prompt": "the dog", "max_tokens": 3, "temperature": 0, "ignore_eos": True}


class Kept(logging.Handler):
    """Keeps the lines."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = Queue[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put(record.getMessage())

    def next(self) -> str:
        """The next line; it may come a little after its answer."""
        return self._lines.get(timeout=60)


@dataclass(frozen=True, slots=True)
class Logged:
    """A server behind a key, and its log."""

    http: httpx.Client
    kept: Kept = field(default_factory=Kept)

    def line(self, method: str, path: str, **fields: Any) -> dict[str, Any]:
        """What is logged of one request."""
        self.http.request(method, path, **fields)
        found: dict[str, Any] = json.loads(self.kept.next())
        return found


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "with prompts"])
def logged(
    served: Served, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Logged]:
    kept = Kept()
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('log')}/registry.sqlite3")
    upgrade(database)
    keyring = Keyring(database, digest_of("the-admin-key"), [KEY])
    router = APIRouter(prefix="/admin/v1")

    @router.get("/things/{name}")
    async def thing() -> None:
        """Of another face."""

    app = create_app(
        served.engine,
        served.catalog,
        keys=keyring,
        kept=Responses(database, days=30, max_bytes=1 << 20),
        manners=Manners(writers=[AccessLog("json", kept)], keeps_text=request.param),
        routers=[router],
    )
    headers = {"Authorization": f"Bearer {KEY}"}
    with listening(app) as url, httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        yield Logged(http, kept)


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_tells_what_a_request_came_to(logged: Logged, stream: bool) -> None:
    line = logged.line(
        "POST", "/v1/completions", json={**BODY, "n": 2, "stream": stream}, headers={"x-request-id": "mine"}
    )
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert (line["request_id"], line["client"], line["tenant"]) == ("mine", "127.0.0.1", "default")
    assert (line["model"], line["revision"]) == ("red", "red@1")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (2, 6)
    assert line["cached_tokens"] <= line["prompt_tokens"]
    assert line["finish_reasons"] == ["length", "length"]
    assert 0 <= line["queue_s"] <= line["ttft_s"] <= line["duration_s"]
    assert "error" not in line


def test_the_path_is_the_routes(logged: Logged) -> None:
    line = logged.line("GET", "/v1/models/red?secret=word")
    assert line["path"] == "/v1/models/{name:path}"
    assert "word" not in json.dumps(line)
    assert "path" not in logged.line("GET", "/a-key-in-the-wrong-place")
    assert logged.line("GET", "/admin/v1/things/word")["path"] == "/admin/v1/things/{name}"


CHAT = {"model": "red", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", BODY),
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", CHAT),
        ("/v1/responses", {"model": "red", "input": "hi", "max_output_tokens": 2}),
    ],
)
def test_the_id_is_the_answers(logged: Logged, path: str, body: dict[str, Any]) -> None:
    answer = logged.http.post(path, json=body).json()
    assert json.loads(logged.kept.next())["id"] == answer["id"]


BACKGROUND = {"model": "red", "input": "hi", "background": True, "ignore_eos": True}


@pytest.mark.parametrize("stream", [False, True])
def test_what_goes_on_in_the_background_is_told_when_it_has_ended(logged: Logged, stream: bool) -> None:
    body = {**BACKGROUND, "max_output_tokens": 3, "stream": stream}
    answer = logged.http.post("/v1/responses", json=body)
    first, later = sorted((json.loads(logged.kept.next()) for _ in range(2)), key=lambda line: "background" in line)
    assert (first["status"], first["path"], "error" in first) == (200, "/v1/responses", False)
    assert (later["background"], later["path"], later["tenant"]) == (True, "/v1/responses", "default")
    assert (later["completion_tokens"], later["finish_reasons"], "error" in later) == (3, ["length"], False)
    assert later["id"] in answer.text
    assert later["request_id"] == first["request_id"] == answer.headers["x-request-id"]
    assert 0 <= later["queue_s"] <= later["ttft_s"] <= later["duration_s"]


def test_what_is_cancelled_in_the_background_is_told_so(logged: Logged) -> None:
    made = logged.http.post("/v1/responses", json=BACKGROUND).json()
    assert logged.http.post(f"/v1/responses/{made['id']}/cancel").json()["status"] == "cancelled"
    lines = [json.loads(logged.kept.next()) for _ in range(3)]
    assert [line["error"] for line in lines if "background" in line] == ["cancelled"]
    assert [line["status"] for line in lines if "background" not in line] == [200, 200]


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/v1/completions", {**BODY, "model": "nobody"}, 404, "model_not_found"),
        ("/v1/completions", {**BODY, "top_p": 7}, 400, "invalid_value"),
        ("/v1/nothing", {}, 404, "not_found"),
        ("/v1/models", {}, 405, "method_not_allowed"),
    ],
)
def test_a_refusal_is_told_by_its_code(
    logged: Logged, path: str, body: dict[str, Any], status: int, error: str
) -> None:
    line = logged.line("POST", path, json=body)
    assert (line["status"], line["error"]) == (status, error)


def test_no_key_is_written(logged: Logged) -> None:
    for given in (KEY, "a-wrong-key"):
        line = logged.line("POST", "/v1/completions", json=BODY, headers={"Authorization": f"Bearer {given}"})
        assert given not in json.dumps(line)
    assert (line["status"], line["error"]) == (401, "invalid_api_key")


def test_prompts_and_answers_are_told_only_where_they_are_asked_for(logged: Logged, request: Any) -> None:
    wanted = "with prompts" in request.node.name
    line = logged.line("POST", "/v1/completions", json={**BODY, "n": 2})
    assert ("prompt" in line, "answers" in line) == (wanted, wanted)
    if wanted:
        assert line["prompt"] == "the dog"
        assert [type(answer) for answer in line["answers"]] == [str, str]


def test_texts_are_cut(served: Served) -> None:
    kept = Kept()
    app = create_app(served.engine, served.catalog, manners=Manners(writers=[AccessLog("json", kept)], keeps_text=True))
    with listening(app) as url, httpx.Client(base_url=url, timeout=60) as http:
        prompts = [[328] * 200] * 5  # "pomegranate", 11,000 characters of it
        http.post("/v1/completions", json={**BODY, "prompt": prompts})
    assert len(json.loads(kept.next())["prompt"]) == MOST_TEXT


def test_a_client_that_hangs_up_is_told_apart(served: Served) -> None:
    kept = Kept()
    app = create_app(served.engine, served.catalog, manners=Manners(writers=[AccessLog("json", kept)]))
    with listening(app) as url, httpx.Client(base_url=url, timeout=60) as http:
        body = {**BODY, "prompt": [[5 + at % 100] for at in range(512)], "max_tokens": 200, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
    assert json.loads(kept.next())["error"] == "client_gone"


@pytest.mark.parametrize("stream", [False, True])
def test_who_finds_no_room_or_the_end_is_told_why(served: Served, stream: bool) -> None:
    kept, flights = Kept(), Flights(Bounds(choices=1))
    app = create_app(served.engine, served.catalog, manners=Manners(flights=flights, writers=[AccessLog("json", kept)]))
    with listening(app) as url, httpx.Client(base_url=url, timeout=60) as http:
        with flights.begin(work(1)), suppress(httpx.ReadError):  # it is refused unread, and here nothing lingers for it
            http.post("/v1/completions", json={**BODY, "stream": stream})
        flights.close()
        with suppress(httpx.ReadError):
            http.post("/v1/completions", json={**BODY, "stream": stream})
    lines = [json.loads(kept.next()) for _ in range(2)]
    assert [(line["status"], line["error"]) for line in lines] == [(503, "queue_full"), (503, "shutting_down")]


def test_lines_may_be_for_people(served: Served) -> None:
    kept = Kept()
    app = create_app(served.engine, served.catalog, manners=Manners(writers=[AccessLog("text", kept)]))
    with listening(app) as url, httpx.Client(base_url=url) as http:
        http.get("/health")
    line = kept.next()
    assert line.startswith("access time=")
    assert " method=GET path=/health status=200 " in line
