"""The JSON Schema Test Suite: under each of its schemas a random model says what the schema takes, or nothing.

The required cases of draft 2020-12, as the sources of the package `jsonschema` bring them. A schema that the server
cannot hold an answer to is a 400, and for one of the reasons that docs/openai.md lists.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from .conftest import Server

AT_ONCE = 16
MAX_TOKENS = 300
CASES = re.compile(r"[^/]+/json/tests/draft2020-12/([\w-]+)\.json")
REASONS = {  # the rows of the table, and the words of the refusal; the first that is found counts
    "`unevaluatedProperties`, `unevaluatedItems`": "unevaluated",
    "`$dynamicRef`, `$dynamicAnchor`": "dynamic",
    "`if`, `then`, `else`": "`if`|`then`|`else`",
    "`contains` and its bounds": "ontains",
    "a `$ref` to another document": "another document",
    "`not`": "`not`",
    "`dependentSchemas`, `dependentRequired`": "dependent",
    "`oneOf` whose alternatives overlap": "oneOf",
    "an unknown `format`": "`format`.* is '",
    "`propertyNames`": "propertyNames",
    "`uniqueItems`": "uniqueItems",
    "a schema that nothing fulfils": "nothing fulfils",
    "a count written as `2.0`": "it takes a whole number",
    "`patternProperties` that overlap": "two schemas",
    "`multipleOf` of more digits than can be counted in": "too many digits",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One schema of the suite."""

    file: str
    about: str
    schema: Any = field(compare=False)


def cases() -> Iterator[Case]:
    """All of them."""
    (sources,) = Path(sys.prefix).glob("jsonschema-*.tar.gz")
    with tarfile.open(sources) as archive:
        for member in archive:
            if found := CASES.fullmatch(member.name):
                opened = archive.extractfile(member)
                assert opened is not None
                for group in json.load(opened):
                    yield Case(found[1], group["description"], group["schema"])


@pytest.fixture(scope="module")
def asked(server: Server, pytestconfig: pytest.Config) -> list[tuple[Case, httpx.Response]]:
    """What the server answered under each schema, once for each seed."""

    async def ask() -> list[tuple[Case, httpx.Response]]:
        turn = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
            bias = await impatient(http)

            async def one(at: int, case: Case, seed: int) -> tuple[Case, httpx.Response]:
                common = {"model": "tiny", "temperature": 1, "seed": seed, "max_tokens": MAX_TOKENS, "logit_bias": bias}
                form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": case.schema}}
                async with turn:
                    if (at + seed) % 2:
                        body = {**common, "prompt": "seeds", "structured_outputs": {"json": case.schema}}
                        return case, await http.post("/v1/completions", json=body)
                    messages = [{"role": "user", "content": "seeds"}]
                    body = {**common, "messages": messages, "response_format": form}
                    return case, await http.post("/v1/chat/completions", json=body)

            seeds = range(pytestconfig.getoption("--seeds"))
            return await asyncio.gather(*(one(at, case, seed) for at, case in enumerate(cases()) for seed in seeds))

    return asyncio.run(ask())


async def impatient(http: httpx.AsyncClient) -> dict[str, float]:
    """A bias towards what ends strings, lists, objects and texts: a random model would seldom."""
    found = await http.post("/tokenize", json={"prompt": '" ] } <|im_end|>', "add_special_tokens": False})
    return {str(token): 6.0 for token in found.json()["tokens"]}


def text_of(answer: httpx.Response) -> tuple[str, str]:
    """What was said, and how it ended."""
    (choice,) = answer.json()["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"], choice["finish_reason"]


def test_every_schema_is_held_to_or_refused(asked: list[tuple[Case, httpx.Response]]) -> None:
    assert {answer.status_code for _, answer in asked} == {200, 400}
    refused = [answer.json()["error"] for _, answer in asked if answer.status_code == 400]
    assert {error["param"] for error in refused} <= {"structured_outputs", "response_format.json_schema.schema"}


def test_every_whole_answer_is_what_its_schema_takes(asked: list[tuple[Case, httpx.Response]]) -> None:
    held = [(case, *text_of(answer)) for case, answer in asked if answer.status_code == 200]
    whole = [(case, text) for case, text, reason in held if reason == "stop"]
    assert len(whole) >= 0.9 * len(held)
    for case, text in whole:
        Draft202012Validator(case.schema).validate(json.loads(text))


def test_a_schema_is_refused_for_a_reason_that_is_told(asked: list[tuple[Case, httpx.Response]]) -> None:
    refused = {case: answer.json()["error"]["message"] for case, answer in asked if answer.status_code == 400}
    reasons = Counter(reason_of(message) for message in refused.values())
    each = {case for case, _ in asked}
    print(f"{len(each)} schemas: {len(each) - len(refused)} held to, {len(refused)} refused; {len(asked)} requests")
    for reason, count in reasons.most_common():
        print(f"| {reason} | {count} |")


def reason_of(message: str) -> str:
    """The row that a refusal belongs to."""
    found = next((row for row, words in REASONS.items() if re.search(words, message)), None)
    assert found, message
    return found
