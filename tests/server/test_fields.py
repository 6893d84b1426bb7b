"""Fields that docs/openai.md has a row for and no other test asks for: small ones, refused ones, ignored ones."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from aril.server.unsupported import CHAT, COMPLETIONS, IGNORED
from builders.answers import GREEDY, both_ways, joined

TALK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "hi", "max_tokens": 1}
FACES = {"/v1/chat/completions": (TALK, CHAT), "/v1/completions": (TEXT, COMPLETIONS)}
REFUSED = [(path, name) for path, (_, refusals) in FACES.items() for name in refusals]
HARMLESS = [
    (path, name, value) for path, (_, refusals) in FACES.items() for name in refusals for value in refusals[name][0]
]
F, END = "40", "2"


@pytest.mark.parametrize(("path", "name"), REFUSED)
def test_a_refused_field_is_a_400_that_names_it(http: httpx.Client, path: str, name: str) -> None:
    answer = http.post(path, json={**FACES[path][0], name: {"odd": "x"}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize(("path", "name", "value"), HARMLESS)
def test_a_field_that_asks_for_what_happens_anyway_is_accepted(
    http: httpx.Client, path: str, name: str, value: Any
) -> None:
    assert http.post(path, json={**FACES[path][0], name: value}).status_code == 200


def test_fields_without_effect_are_accepted_and_listed(http: httpx.Client) -> None:
    odd = {
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "flex",
        "prediction": {"type": "content", "content": "x"},
        "prompt_cache_key": "x",
        "prompt_cache_options": {},
        "prompt_cache_retention": "24h",
        "safety_identifier": "x",
    }
    answer = http.post("/v1/chat/completions", json={**TALK, **odd})
    assert answer.status_code == 200
    assert set(answer.headers[IGNORED].split(",")) == set(odd)


def test_max_completion_tokens_wins(http: httpx.Client) -> None:
    body = {**GREEDY, **TALK, "max_tokens": 9, "max_completion_tokens": 4}
    assert http.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"] == 4


def test_what_ended_an_answer_stays_when_asked(http: httpx.Client) -> None:
    asked = {"logit_bias": {F: 100}, "stop": ["FFF"], "max_tokens": 9}
    for kept, text in ((True, "FFF"), (False, "")):
        whole, parts = both_ways(http, include_stop_str_in_output=kept, **asked)
        assert (whole["text"], joined(parts), whole["stop_reason"]) == (text, text, "FFF")


def test_the_end_may_be_ignored(http: httpx.Client) -> None:
    asked = {"logit_bias": {END: 100}, "max_tokens": 5, "return_token_ids": True}
    for ignored, reason, count in ((False, "stop", 1), (True, "length", 5)):
        choice = http.post("/v1/completions", json={**TEXT, **asked, "ignore_eos": ignored}).json()["choices"][0]
        assert (choice["finish_reason"], len(choice["token_ids"])) == (reason, count)


def test_special_tokens_are_shown_when_asked(http: httpx.Client) -> None:
    whole, parts = both_ways(http, logit_bias={"1": 100}, max_tokens=2, skip_special_tokens=False)
    assert (whole["text"], joined(parts)) == ("<|im_start|>" * 2, "<|im_start|>" * 2)
