"""`allowed_token_ids` and `bad_words` over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from aril.server.sampling import of_completion
from aril.server.schemas import CompletionRequest
from builders.answers import GREEDY, both_ways, joined
from builders.serving import Served

F, G = 40, 41  # the tokens of two letters


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"allowed_token_ids": [F]}, "FFFF"),
        ({"allowed_token_ids": [F, G], "bad_words": ["F"]}, "GGGG"),
        ({"allowed_token_ids": [F, G], "bad_words": ["FF", "GG"], "logit_bias": {str(F): 50}}, "FGFG"),
        ({"allowed_token_ids": [F, G], "bad_words": ["F"], "logit_bias": {str(F): 100}}, "GGGG"),
    ],
)
def test_tokens_are_allowed_and_words_are_not(http: httpx.Client, asked: dict[str, Any], text: str) -> None:
    whole, parts = both_ways(http, max_tokens=4, **asked)
    assert (whole["text"], joined(parts)) == (text, text)


def test_a_chat_takes_them_too(http: httpx.Client) -> None:
    body = {**GREEDY, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    answer = http.post("/v1/chat/completions", json={**body, "allowed_token_ids": [F, G], "bad_words": ["F"]})
    assert answer.json()["choices"][0]["message"]["content"] == "GGG"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [512]}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"allowed_token_ids": [True]}, "allowed_token_ids[0]"),
        ({"allowed_token_ids": "5"}, "allowed_token_ids"),
        ({"bad_words": "x"}, "bad_words"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["x" * 20_000]}, "bad_words"),
        ({"allowed_token_ids": [F], "bad_words": ["F"]}, "allowed_token_ids"),
        ({"allowed_token_ids": [F], "structured_outputs": {"regex": "[0-9]"}}, "structured_outputs"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_leaves_nothing_is_refused_by_name(
    http: httpx.Client, asked: dict[str, Any], param: str, stream: bool
) -> None:
    answer = http.post("/v1/completions", json={**GREEDY, "prompt": "the dog", "stream": stream, **asked})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("harmless", [{"bad_words": []}, {"bad_words": None, "allowed_token_ids": None}])
def test_no_words_are_no_rule(http: httpx.Client, harmless: dict[str, Any]) -> None:
    assert both_ways(http, max_tokens=4, **harmless)[0] == both_ways(http, max_tokens=4)[0]


def test_the_prompts_of_a_request_share_their_rules(served: Served) -> None:
    biases = {str(token): 1.0 for token in range(300)}
    body = CompletionRequest.model_validate(
        {"prompt": "a", "model": "tiny", "logit_bias": biases, "allowed_token_ids": [F, G], "bad_words": ["FG"]}
    )
    longest = served.engine.model.max_model_len
    plain, cut, same = of_completion(body, served.engine, [5, longest - 3, 8])
    assert plain is same
    assert (plain.max_tokens, cut.max_tokens) == (16, 3)
    assert plain.logit_bias is cut.logit_bias
    assert plain.allowed_token_ids is cut.allowed_token_ids
    assert plain.bad_words_ids == cut.bad_words_ids != ()
    assert plain.bad_words == cut.bad_words == ()  # spelled once for all


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("logit_bias", {str(token): 1 for token in range(512)}),
        ("allowed_token_ids", [F] * 513),
        ("stop_token_ids", [F] * 513),
        ("bad_words", ["F" * 513]),
    ],
)
def test_long_rules_for_many_prompts_are_refused_by_name(http: httpx.Client, name: str, rules: Any) -> None:
    body = {**GREEDY, "prompt": [[F]] * 2048, "max_tokens": 1, name: rules}
    if name == "logit_bias":
        body[name] = {**rules, "0512": 1}  # not checked before its size is
    answer = http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name), answer.text
    assert "over 1048576 in all" in answer.json()["error"]["message"]
