"""Keys, models, tokens and health: the smaller routes."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from aril import __version__
from aril.admin_api.db import Database
from aril.admin_api.keyring import Keyring
from aril.core.bearer import digest_of
from aril.server.app import create_app
from aril.server.auth import OneKey
from builders.serving import Served, listening
from openai import OpenAI


@pytest.fixture(scope="module")
def locked(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The same engine behind two keys."""
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('keys')}/registry.sqlite3")
    keyring = Keyring(database, digest_of("the-admin-key"), ["first", "second"])
    app = create_app(served.engine, served.catalog, keys=keyring)
    with listening(app) as url, httpx.Client(base_url=url) as session:
        yield session


@pytest.mark.parametrize("header", [None, "", "first", "Bearer", "Bearer wrong", "Basic first"])
def test_without_a_good_key_nothing_is_told(locked: httpx.Client, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    for answer in (
        locked.get("/v1/models", headers=headers),
        locked.post("/v1/completions", headers=headers, content=b"not even json"),
        locked.post("/tokenize", headers=headers, json={}),
    ):
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] in ("invalid_api_key", "missing_api_key")


@pytest.mark.parametrize("key", ["first", "second"])
def test_each_key_opens(locked: httpx.Client, key: str) -> None:
    assert locked.get("/v1/models", headers={"Authorization": f"bearer {key}"}).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/metrics"])
def test_what_operators_ask_needs_no_key(locked: httpx.Client, path: str) -> None:
    assert locked.get(path).status_code == 200


def test_the_base_and_every_adapter_are_listed_with_their_parent(client: OpenAI) -> None:
    parents = {m.id: (m.model_extra or {})["parent"] for m in client.models.list()}
    assert parents == {"tiny": None, "red": "tiny", "green": "tiny", "org/blue": "tiny"}


@pytest.mark.parametrize("name", ["tiny", "red", "org/blue"])
def test_one_model_can_be_looked_up(http: httpx.Client, name: str) -> None:
    found = http.get(f"/v1/models/{name}").json()
    assert (found["id"], found["object"], found["max_model_len"]) == (name, "model", 256)


def test_an_unknown_model_cannot_be_looked_up(http: httpx.Client) -> None:
    answer = http.get("/v1/models/nobody")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_text_survives_tokens_and_back(http: httpx.Client) -> None:
    text = "Stra\u00dfe, \u4f60\u597d \U0001f642"
    found = http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == 256
    assert http.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "a", "messages": []}, 400),
        ("/tokenize", {"prompt": "a", "model": "nobody"}, 404),
        ("/detokenize", {"tokens": [10**6]}, 400),
        ("/detokenize", {"tokens": ["a"]}, 400),
        ("/detokenize", {"tokens": [1], "model": "nobody"}, 404),
    ],
)
def test_wrong_questions_about_tokens_are_refused(http: httpx.Client, path: str, body: object, status: int) -> None:
    assert http.post(path, json=body).status_code == status


def test_the_version_is_told(http: httpx.Client) -> None:
    assert http.get("/version").json() == {"version": __version__}


def test_ready_tells_how_busy_the_engine_is(http: httpx.Client) -> None:
    found = http.get("/ready").json()
    assert (found["status"], found["model"], found["running"]) == ("ready", "tiny", 0)
    assert found["free_blocks"] == found["total_blocks"] > 0


def test_metrics_ask_for_the_key_that_was_set_for_them(served: Served) -> None:
    app = create_app(served.engine, served.catalog, scrapers=OneKey("scraper", "/metrics"))
    with listening(app) as url, httpx.Client(base_url=url) as session:
        assert session.get("/metrics").status_code == 401
        assert session.get("/metrics", headers={"Authorization": "Bearer other"}).status_code == 401
        assert session.get("/metrics", headers={"Authorization": "Bearer scraper"}).status_code == 200
