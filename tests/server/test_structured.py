"""Structured output over HTTP: OpenAI's own client, vLLM's fields, streams, and strangers with hostile constraints."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import pytest
from builders.hostile_grammars import HOSTILE
from builders.serving import Served
from openai import OpenAI
from pydantic import BaseModel

MESSAGES: Any = [{"role": "user", "content": "a seed, as JSON"}]
QUICK = {"max_tokens": 150, "seed": 1}
SECONDS = 20.0  # within which a hostile constraint is answered by a machine with other things to do; else 2


class Seed(BaseModel):
    """What is asked for."""

    kind: Literal["aril", "stone"]
    number: Literal[1, 2, 613]


def schema(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "seed", "schema": Seed.model_json_schema(), **fields}}


@pytest.fixture(scope="module", autouse=True)
def warm(http: httpx.Client) -> None:
    """The first constraint starts the process in which all are tried out."""
    ask(http, {"structured_outputs": {"choice": ["warm"]}})


def ask(http: httpx.Client, fields: dict[str, Any]) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"model": "tiny", "messages": MESSAGES, **QUICK, **fields})


def text_of(http: httpx.Client, fields: dict[str, Any]) -> str:
    answer = ask(http, fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def streamed(http: httpx.Client, fields: dict[str, Any]) -> str:
    answer = ask(http, {**fields, "stream": True})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


def test_the_openai_client_parses_what_it_asked_for(client: OpenAI) -> None:
    answer = client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Seed, **QUICK)
    assert isinstance(answer.choices[0].message.parsed, Seed)


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_json_schema_is_held_to(http: httpx.Client, strict: bool | None) -> None:
    Seed.model_validate_json(text_of(http, {"response_format": schema(strict=strict)}))


def test_a_json_object_is_one(http: httpx.Client) -> None:
    fields = {"response_format": {"type": "json_object"}, "logit_bias": {"95": 20, "4": 5}}
    answer = ask(http, fields).json()["choices"][0]
    assert answer["message"]["content"].startswith("{")
    assert answer["finish_reason"] == "length" or isinstance(json.loads(answer["message"]["content"]), dict)


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": "[0-9]{3}-[a-f]+!"}, "[0-9]{3}-[a-f]+!"),
        ({"choice": ["left", "right"]}, "left|right"),
        ({"grammar": 'start: "a" start | "b"'}, "a*b"),
        ({"json": {"enum": ["x", "y"]}, "regex": None}, '"[xy]"'),
        ({"json": json.dumps({"enum": ["x", "y"]})}, '"[xy]"'),
    ],
)
def test_vllms_fields_are_held_to_whole_and_streamed(http: httpx.Client, outputs: Any, pattern: str) -> None:
    fields = {"structured_outputs": outputs}
    whole = text_of(http, fields)
    assert re.fullmatch(pattern, whole)
    assert streamed(http, fields) == whole


def test_completions_take_them_too(http: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": ["one", "two"], "n": 2, "structured_outputs": {"choice": ["left", "right"]}}
    answer = http.post("/v1/completions", json={**body, **QUICK}).json()
    assert [choice["text"] in ("left", "right") for choice in answer["choices"]] == [True] * 4


def test_an_adapter_is_held_to_it_as_the_base_is(http: httpx.Client) -> None:
    assert text_of(http, {"model": "red", "structured_outputs": {"choice": ["left", "right"]}}) in ("left", "right")


def test_an_answer_that_is_cut_says_length(http: httpx.Client) -> None:
    answer = ask(http, {"structured_outputs": {"regex": "[a-z]{99}"}, "max_tokens": 3}).json()
    assert answer["choices"][0]["finish_reason"] == "length"


def test_the_refusal_of_a_streamed_request_is_a_400_too(http: httpx.Client) -> None:
    answer = ask(http, {"structured_outputs": {"regex": "(?=a)b"}, "stream": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "structured_outputs")


def test_a_constraint_has_a_largest_size(http: httpx.Client) -> None:
    answer = ask(http, {"structured_outputs": {"choice": ["long " * 300_000]}})
    assert (answer.status_code, "characters" in answer.text) == (400, True)


def test_hostile_constraints_are_answered_soon_and_others_get_all_they_asked_for(served: Served) -> None:
    talk = {"messages": MESSAGES, "max_tokens": 120, "ignore_eos": True, "model": "tiny", "temperature": 0}

    def speak(_: int) -> int:
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=talk, timeout=60).json()
        return int(answer["usage"]["completion_tokens"])

    def attack(name: str) -> tuple[int, float]:
        began = time.monotonic()
        body = {"model": "tiny", "messages": MESSAGES, "structured_outputs": HOSTILE[name]}
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60)
        return answer.status_code, time.monotonic() - began

    with ThreadPoolExecutor(5) as threads:
        speakers = [threads.submit(speak, at) for at in range(4)]
        answers = [threads.submit(attack, name).result() for name in HOSTILE]
    assert [status for status, _ in answers] == [400] * len(HOSTILE)
    assert max(seconds for _, seconds in answers) < SECONDS
    assert {speaker.result() for speaker in speakers} == {120}


def test_a_bad_grammar_right_after_a_good_one(http: httpx.Client) -> None:
    good = {"structured_outputs": {"grammar": 'start: "good"'}}
    bad = {"structured_outputs": {"grammar": "start: good"}}
    assert [ask(http, each).status_code for each in (good, bad, good, bad)] == [200, 400, 200, 400]
