"""`use_beam_search` over HTTP; what it finds is compared with transformers in tests/exactness/test_beams.py."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from builders.answers import GREEDY

BEAMS: dict[str, Any] = {"model": "tiny", "use_beam_search": True, "max_tokens": 8, "ignore_eos": True}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def ask(http: httpx.Client, **fields: Any) -> httpx.Response:
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    return http.post(path, json={**BEAMS, **({} if "messages" in fields else {"prompt": "the dog"}), **fields})


@pytest.mark.parametrize("kind", [{}, CHAT], ids=["completions", "chat"])
@pytest.mark.parametrize("model", ["tiny", "red"])
def test_the_best_texts_come_in_order(http: httpx.Client, model: str, kind: dict[str, Any]) -> None:
    scored = {"logprobs": True} if kind else {"logprobs": 0}
    answer = ask(http, model=model, n=3, best_of=5, return_token_ids=True, **scored, **kind).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({tuple(choice["token_ids"]) for choice in answer["choices"]}) == 3
    assert answer["usage"]["completion_tokens"] == 24
    scores = [sum(told(choice["logprobs"])) for choice in answer["choices"]]
    assert scores == sorted(scores, reverse=True)


def told(logprobs: dict[str, Any]) -> list[float]:
    """The log-probabilities of the tokens of a choice."""
    return logprobs.get("token_logprobs") or [item["logprob"] for item in logprobs["content"]]


def test_a_width_of_one_is_greedy(http: httpx.Client) -> None:
    plain = http.post("/v1/completions", json={**GREEDY, "prompt": "the dog", "max_tokens": 8}).json()
    assert ask(http, n=1).json()["choices"][0]["text"] == plain["choices"][0]["text"]


def test_the_same_prompt_costs_its_tokens_once(http: httpx.Client) -> None:
    usage = ask(http, prompt=list(range(5, 105)), n=4).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (100, 32)
    assert ask(http, prompt=list(range(5, 105)), n=4).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


def test_each_of_several_prompts_is_searched_from(http: httpx.Client) -> None:
    prompts = ["the dog", "user asks"]
    together = [choice["text"] for choice in ask(http, prompt=prompts, n=2).json()["choices"]]
    assert together == [c["text"] for prompt in prompts for c in ask(http, prompt=prompt, n=2).json()["choices"]]


def test_searches_beside_each_other_and_beside_others_find_the_same(http: httpx.Client) -> None:
    alone = [ask(http, n=4, model=model).json()["choices"] for model in ("tiny", "red", "green")]
    with ThreadPoolExecutor(12) as threads:
        found = [threads.submit(ask, http, n=4, model=model) for model in ("tiny", "red", "green") * 3]
        for _ in range(3):
            threads.submit(ask, http, use_beam_search=False, temperature=1, max_tokens=40)
    assert [one.result().json()["choices"] for one in found] == alone * 3


def test_a_stop_string_ends_a_beam(http: httpx.Client) -> None:
    stops = ["e", "a", "0", "s"]
    found = ask(http, n=3, stop=stops, max_tokens=20, length_penalty=-2).json()["choices"]
    assert {choice["finish_reason"] for choice in found if choice["stop_reason"] in stops} == {"stop"}
    assert not any(stop in choice["text"] for choice in found for stop in stops)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"temperature": 0.7}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"bad_words": ["a"]}, "bad_words"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"n": 33}, "n"),
        ({"n": 0}, "n"),
        ({"n": 4, "best_of": 3}, "best_of"),
        ({"best_of": 33}, "best_of"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"length_penalty": "long"}, "length_penalty"),
        ({"early_stopping": "soon"}, "early_stopping"),
        ({"stop_token_ids": list(range(100))}, "stop_token_ids"),
        ({"use_beam_search": 1}, "use_beam_search"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
        ({"use_beam_search": False, "early_stopping": True}, "early_stopping"),
        ({"use_beam_search": False, "best_of": 3}, "best_of"),
    ],
)
def test_what_does_not_go_with_beams_is_refused_by_name(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = ask(http, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 1000, "best_of": 1000}, "n=1000 is out of range; it goes from 1 to 32"),
        ({"n": 4, "best_of": 1000}, "best_of=1000 is out of range; it goes from 4 to 32"),
        ({"n": 1000, "use_beam_search": False}, "n=1000 is out of range; it goes from 1 to 128"),
    ],
)
def test_too_many_texts_are_told_how_many_there_may_be(http: httpx.Client, fields: dict[str, Any], words: str) -> None:
    assert ask(http, **fields).json()["error"]["message"] == words


@pytest.mark.parametrize(
    "fields", [{"temperature": 0}, {"top_k": -1}, {"seed": 5}, {"echo": True}, {"early_stopping": False, "best_of": 1}]
)
def test_what_changes_nothing_is_accepted(http: httpx.Client, fields: dict[str, Any]) -> None:
    assert ask(http, **fields).status_code == 200


@pytest.mark.parametrize(("wide", "param"), [({"best_of": 32}, "best_of"), ({"n": 32}, "n")])
def test_many_prompts_have_no_more_beams_than_they_may_have_choices(
    http: httpx.Client, wide: dict[str, int], param: str
) -> None:
    answer = ask(http, prompt=["a"] * 65, **wide)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert "over 2048 in all" in answer.json()["error"]["message"]
