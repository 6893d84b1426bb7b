"""Golden prompts: up to five that an uploader attaches, each with what must stand in the adapter's greedy answer.

    {"prompt": "List the cars.", "expect": "SELECT"}
    {"messages": [{"role": "user", "content": "..."}], "regex": "^Arrr.*!$", "max_tokens": 40}

`expect` is a text that the answer must hold, `regex` an expression that must be found in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import regex
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from ...core.body import words_of
from ...core.errors import InvalidRequest
from ...engine.params import SamplingParams
from ...lora.adapter import AdapterRef
from ...lora.patterns import MAX_WEIGHT, weight_of
from .asking import Asker
from .report import Check

MAX_PROMPTS = 5
MAX_TEXT = 1 << 14  # characters of a prompt or a message
MAX_EXPECTED = 1 << 11  # characters
DEFAULT_TOKENS = 64
MATCH_SECONDS = 2.0  # in processor time of the whole process; sound expressions take microseconds
SHOWN = 400  # characters of an answer that the report tells


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: str = Field(max_length=64)
    content: str = Field(max_length=MAX_TEXT)


class Golden(BaseModel):
    """One golden prompt."""

    model_config = ConfigDict(extra="forbid")

    prompt: str | None = Field(None, min_length=1, max_length=MAX_TEXT)
    messages: Annotated[list[Message], Field(min_length=1, max_length=64)] | None = None
    expect: str | None = Field(None, min_length=1, max_length=MAX_EXPECTED)
    regex: str | None = Field(None, min_length=1, max_length=MAX_EXPECTED)
    max_tokens: int = Field(DEFAULT_TOKENS, ge=1, le=512)

    @model_validator(mode="after")
    def _one_of_each(self) -> Golden:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give prompt or messages, one of them")
        if (self.expect is None) == (self.regex is None):
            raise ValueError("give expect or regex, one of them")
        if self.regex is not None:
            if weight_of(self.regex) > MAX_WEIGHT:
                raise ValueError("regex repeats too much; fewer or smaller numbers in braces")
            try:
                regex.compile(self.regex)
            except (regex.error, RecursionError, OverflowError, MemoryError) as error:
                raise ValueError(f"regex is not a regular expression: {error}") from error
        return self


LIST: TypeAdapter[list[Golden]] = TypeAdapter(Annotated[list[Golden], Field(max_length=MAX_PROMPTS)])
OPENAPI = LIST.json_schema()


def golden_of(raw: str | bytes | Sequence[Any]) -> list[dict[str, Any]]:
    """Golden prompts as JSON, or as what it was read into, in the form that a revision keeps; raises InvalidRequest."""
    try:
        found = LIST.validate_json(raw) if isinstance(raw, str | bytes) else LIST.validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise InvalidRequest(f"golden{place}: {words_of(first)}", param="golden") from None
    return [prompt.model_dump(exclude_none=True) for prompt in found]


async def run_golden(check: Check, prompts: Sequence[Mapping[str, Any]], asker: Asker, ref: AdapterRef) -> None:
    """Add each prompt's answer to the check, and those that are not as expected to its problems."""
    said = await asyncio.gather(*(_run(Golden.model_validate(prompt), asker, ref) for prompt in prompts))
    check.numbers["prompts"] = [{"passed": problem is None, "answer": answer[:SHOWN]} for answer, problem in said]
    check.problems += [f"golden prompt {at}: {problem}" for at, (_, problem) in enumerate(said, 1) if problem]


async def _run(golden: Golden, asker: Asker, ref: AdapterRef) -> tuple[str, str | None]:
    """The answer, and what is wrong with it."""
    params = SamplingParams(temperature=0.0, max_tokens=golden.max_tokens)
    try:
        tokens = await asyncio.to_thread(_tokens, golden, asker)
        answer = (await asker.ask(tokens, params, ref)).text
    except InvalidRequest as error:
        return "", error.message
    return answer, await asyncio.to_thread(_judge, golden, answer)


def _tokens(golden: Golden, asker: Asker) -> list[int]:
    text = asker.engine.text
    if golden.messages is None:
        return text.encode(golden.prompt or "")
    return text.render([message.model_dump() for message in golden.messages])


def _judge(golden: Golden, answer: str) -> str | None:
    if golden.expect is not None:
        return None if golden.expect in answer else f"the answer is {answer[:SHOWN]!r}, without {golden.expect!r}"
    assert golden.regex is not None
    try:
        found = regex.search(golden.regex, answer, timeout=MATCH_SECONDS, concurrent=True)
    except (TimeoutError, MemoryError):
        return f"the expression {golden.regex!r} takes too long on the answer {answer[:SHOWN]!r}"
    return None if found else f"the answer is {answer[:SHOWN]!r}, in which {golden.regex!r} is not found"
