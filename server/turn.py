"""One turn of a model in a conversation: begun from a chat request, heard piece by piece or whole.

/v1/chat/completions, and every other shape of a conversation, is a rendering of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from fastapi import Request

from ..core.callers import Caller
from ..engine.metering import Work
from ..engine.params import SamplingParams
from ..engine.request import Chunk
from . import prompts, sampling
from .body import size_of
from .deps import Face, resolved
from .effort import heeded
from .generation import Choice, Collected, Generation, Usage, new_id
from .hearing import Hearer, Hearing
from .logprobs import Speller
from .request_ids import named
from .schemas import ChatRequest
from .speech.base import Delta, Heard
from .standing import standing_of
from .tool_use import ToolUse
from .unsupported import CHAT, ignored, refuse


@dataclass(frozen=True, slots=True)
class News:
    """What a chunk brings to one choice. `delta` is what its text turned out to be, and may be empty."""

    index: int
    is_first: bool  # of its choice
    delta: Delta
    finish_reason: str | None  # OpenAI's word; with the last news of a choice
    chunk: Chunk


@dataclass(slots=True)
class Said:
    """One whole choice: its tokens, and what they turned out to say."""

    index: int
    choice: Choice = field(default_factory=Choice)
    heard: Heard = field(default_factory=Heard)
    finish_reason: str | None = None

    def take(self, news: News) -> None:
        """Append what `news` brings."""
        self.choice.take(news.chunk)
        self.heard.take(news.delta)
        self.finish_reason = news.finish_reason


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer on its way. Either `news` or `whole` is asked for, once."""

    body: ChatRequest
    work: Generation
    speller: Speller
    hearing: Hearing
    found: Collected = field(default_factory=Collected)  # scores of the prompt, and usage so far

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return self.found.usage

    async def news(self, face: Face) -> AsyncGenerator[News, None]:
        """What comes of all choices, in the order it comes; closing it early aborts them."""
        hearers: dict[int, Hearer] = {}
        async with aclosing(self.work.run(face)) as stream:
            async for prompt_at, chunk in stream:
                is_first = self.found.note(prompt_at, chunk)
                hearer = hearers[chunk.index] if chunk.index in hearers else self.hearing.hearer()
                hearers[chunk.index] = hearer
                yield News(chunk.index, is_first, hearer.delta(chunk), hearer.finish_reason(chunk), chunk)

    async def whole(self, face: Face) -> list[Said]:
        """All choices, in the order of the answer."""
        said: dict[int, Said] = {}
        async with aclosing(self.news(face)) as stream:
            async for news in stream:
                said.setdefault(news.index, Said(news.index)).take(news)
        return [said[index] for index in sorted(said)]


async def begin(request: Request, face: Face, caller: Caller, body: ChatRequest, *, prefix: str = "chatcmpl-") -> Turn:
    """Everything is checked; nothing runs before the turn is asked for its news. `prefix`: of the answer's id."""
    refuse(body.unknown, CHAT)
    sampling.check_stream(body)
    resolution = await resolved(request, caller, body.model, body.user)
    asked = await face.aside.work(size_of(request), partial(Asked.of, face, body))
    work = Work(caller=caller, resolution=resolution, prompts=[asked.prompt], params=[asked.params])
    passed_over = {**body.unknown, **asked.hearing.use.passed_over(face.formats.calls)}
    headers = {**named(body.request_id), **ignored(passed_over, CHAT)}
    generation = Generation(new_id(prefix), body.model, work, *standing_of(body, caller), headers=headers)
    speller = Speller(face.engine.text, bool(body.return_tokens_as_token_ids))
    return Turn(asked.body, generation, speller, asked.hearing)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a chat request comes to, however long its messages, tools and rules are; its effort is heeded in `body`."""

    body: ChatRequest
    hearing: Hearing
    prompt: list[int]
    params: SamplingParams

    @classmethod
    def of(cls, face: Face, body: ChatRequest) -> Asked:
        """For a worker thread."""
        use, body, engine = ToolUse.of(body), heeded(face, body), face.engine
        room = prompts.Room(engine.model, body.truncate_prompt_tokens)
        prompt = prompts.of_messages(face, body.messages, body, tools=use.shown, room=room)
        hearing = Hearing.of(face, body, use, prompt)
        params = hearing.params(sampling.of_chat(body, engine, len(prompt)), engine.text)
        return cls(body, hearing, prompt, params)
