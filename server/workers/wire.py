"""What the process that has the engine and one that only answers HTTP say to each other.

A frame is its length, four bytes, and a list of messages in MessagePack; every message is checked against its class as
it is read. Plain data alone: nothing that is read can run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ...core import errors
from ...core.callers import Caller
from ...engine.client import ModelInfo
from ...engine.request import Chunk, TokenLogprobs
from ..config import ServerConfig
from ..generation import Generation

LENGTH = 4  # bytes
LONGEST = 1 << 30  # bytes of a frame; a body has at most 16 MiB


class Message(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Ground of all messages. `number` is that of the question or generation which it is about."""


class Hello(Message, frozen=True):
    """To a worker, first of all: whom it answers for."""

    model: ModelInfo
    text: dict[str, Any]
    default_params: dict[str, Any]
    max_body: int
    trusts_templates: bool
    server: ServerConfig
    socket: str  # path of the one for all that a worker cannot answer
    log_level: str


class Verify(Message, frozen=True):
    """Who sent that Authorization header?"""

    number: int
    header: str | None
    origin: str
    query: list[tuple[str, str]]


class Resolve(Message, frozen=True):
    """What does that model name mean?"""

    number: int
    model: str
    caller: Caller
    user: str | None
    headers: dict[str, str]


class ListModels(Message, frozen=True):
    """Which adapters can the caller name?"""

    number: int
    caller: Caller


class FindModel(Message, frozen=True):
    """Is there an adapter of that name?"""

    number: int
    model: str
    caller: Caller


class Room(Message, frozen=True):
    """Is there room for one choice more of that priority?"""

    number: int
    priority: int


class Run(Message, frozen=True):
    """Run this generation."""

    number: int
    generation: Generation


class Leave(Message, frozen=True):
    """Nobody waits for that generation or answer any more."""

    number: int


class Count(Message, frozen=True):
    """An HTTP answer has begun."""

    route: str
    status: str


class Ready(Message, frozen=True):
    """The worker accepts connections."""


class Stop(Message, frozen=True):
    """To a worker: take nothing new, let what runs end, and say when it has."""


class Landed(Message, frozen=True):
    """The worker has been told to stop, and nothing runs there any more."""


class Quit(Message, frozen=True):
    """To a worker: cut off what still runs, and end."""

    by: str  # what cuts it short, for the log


class Answer(Message, frozen=True):
    """What a question came to."""

    number: int
    value: Any


class Begin(Message, frozen=True):
    """The headers of a generation, before its first chunk."""

    number: int
    headers: dict[str, str]


class News(Message, frozen=True):
    """A chunk of a generation."""

    number: int
    prompt_at: int
    index: int
    token_ids: list[int]
    text: str
    num_prompt: int
    num_cached: int
    num_output: int
    queued: float
    finish_reason: str | None
    stop_reason: int | str | None
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs | None] | None
    embedding: bytes | None


class End(Message, frozen=True):
    """A generation has ended, or a question has no answer: with what was wrong, if anything."""

    number: int
    failure: dict[str, Any] | None


Question = Verify | Resolve | ListModels | FindModel | Room
OfItself = Ready | Landed  # what a worker says of itself
ToMain = Question | Run | Leave | Count | OfItself
Told = Answer | Begin | News | End  # of a question or a generation
Order = Stop | Quit
ToWorker = Hello | Order | Told

_ENCODER = msgspec.msgpack.Encoder()
FROM_WORKER = msgspec.msgpack.Decoder(list[ToMain])
FROM_MAIN = msgspec.msgpack.Decoder(list[ToWorker])
_KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}


def frame(messages: Sequence[Message]) -> bytes:
    """All of them as bytes. Raises TooLarge."""
    body = _ENCODER.encode(messages)
    if len(body) > LONGEST:
        raise errors.TooLarge(f"{len(body)} bytes pass between the processes of this server; at most {LONGEST} can")
    return len(body).to_bytes(LENGTH, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The messages of the next frame, still encoded. Raises IncompleteReadError at the end of the connection."""
    length = int.from_bytes(await reader.readexactly(LENGTH), "big")
    assert length <= LONGEST, "the other end is ours"
    return await reader.readexactly(length)


def news_of(number: int, prompt_at: int, chunk: Chunk) -> News:
    """A chunk as a message; an error ends the generation and does not travel in a chunk."""
    return News(
        number,
        prompt_at,
        chunk.index,
        chunk.token_ids,
        chunk.text,
        chunk.num_prompt,
        chunk.num_cached,
        chunk.num_output,
        chunk.queued,
        chunk.finish_reason,
        chunk.stop_reason,
        chunk.logprobs,
        chunk.prompt_logprobs,
        None if chunk.embedding is None else chunk.embedding.astype("<f4").tobytes(),
    )


def chunk_of(news: News, request_id: str) -> Chunk:
    """`news_of`, undone; `request_id` is the generation's."""
    return Chunk(
        request_id=request_id,
        index=news.index,
        token_ids=news.token_ids,
        text=news.text,
        logprobs=news.logprobs,
        prompt_logprobs=news.prompt_logprobs,
        embedding=None if news.embedding is None else np.frombuffer(news.embedding, "<f4"),
        finish_reason=news.finish_reason,
        stop_reason=news.stop_reason,
        num_prompt=news.num_prompt,
        num_cached=news.num_cached,
        num_output=news.num_output,
        queued=news.queued,
    )


def failure_of(error: errors.ArilError) -> dict[str, Any]:
    """An error of ours as plain data."""
    kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in _KINDS)
    return {"kind": kind, "fields": vars(error)}


def error_of(failure: Mapping[str, Any]) -> errors.ArilError:
    """`failure_of`, undone."""
    kind, fields = _KINDS[failure["kind"]], failure["fields"]
    error = kind.__new__(kind, fields["message"])
    assert isinstance(error, errors.ArilError), "no other error is sent"
    vars(error).update({**fields, "problems": tuple(fields["problems"])})
    return error
