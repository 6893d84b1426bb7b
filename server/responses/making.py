"""One response on its way: its events, and the object that stands at the end of them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from ...core.errors import ArilError, InvalidRequest, RateLimited, TooLarge
from ..deps import Face
from ..errors import ours
from ..logprobs import chat_content
from ..renamed import spoken
from ..turn import News, Turn
from .asked import NAMES, tells_logprobs
from .output import Event, Output, Status
from .schemas import ResponseRequest
from .store import Json

ENDED = ("completed", "incomplete", "failed", "cancelled")


@dataclass(slots=True)
class Making:
    """A response that is being made: what was asked, the turn that answers it, and what happens to the whole of it."""

    id: str
    body: ResponseRequest
    turn: Turn
    keep: Callable[[Json], Awaitable[object]] | None  # None: it is not kept
    output: Output = field(default_factory=Output)
    _thoughts: int = 0  # tokens
    _created: int = field(default_factory=lambda: int(time.time()))

    def opening(self) -> Iterator[Event]:
        """The events that come before all others."""
        for name in ("response.created", "response.in_progress"):
            yield name, {"response": self.shown("in_progress")}

    async def events(self, face: Face, *, begun: bool = False) -> AsyncGenerator[Event, None]:
        """From the first to what it ended as; `begun`: the opening has been told. What goes wrong is raised."""
        finish_reason = None
        async with aclosing(spoken(self.turn.news(face), NAMES)) as stream:
            async for news in stream:
                for event in () if begun else self.opening():
                    yield event
                begun = True
                for event in self.output.take(news, self._logprobs(news)):
                    yield event
                if self.output.thinks:
                    self._thoughts += len(news.chunk.token_ids)
                finish_reason = news.finish_reason
        status: Status = "incomplete" if finish_reason == "length" else "completed"
        for event in self.output.end(status):
            yield event
        whole = self.shown(status)
        if self.keep is not None:
            await self.keep(whole)  # whoever hears of the end may come back to it
        yield f"response.{status}", {"response": whole}

    def failed(self, error: Exception) -> Json:
        """The response that ended with `error`."""
        shown = ours(error)
        for _ in self.output.end("incomplete"):
            pass  # nobody is told of an end that the error brought
        return {**self.shown("failed"), "error": {"code": _code(shown), "message": shown.message}}

    def shown(self, status: str) -> Json:
        """The response as it stands."""
        body, params = self.body, self.turn.work.work.params[0]
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": bool(body.background),
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": body.model,
            "output": [] if status == "in_progress" else self.output.items,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "store": self.keep is not None,
            "temperature": params.temperature,
            "text": _text(body),
            "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
            "tools": [tool.model_dump(include=set(TOOL_FIELDS)) for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "usage": self._usage() if status in ENDED else None,
            "user": body.user,
            "metadata": body.metadata or {},
        }

    def _usage(self) -> Json:
        shown = self.turn.usage.shown()
        cached = shown["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": shown["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": shown["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._thoughts},
            "total_tokens": shown["total_tokens"],
        }

    def _logprobs(self, news: News) -> list[Json]:
        if not tells_logprobs(self.body):
            return []
        return list(chat_content(news.chunk.logprobs or (), self.body.top_logprobs or 0, self.turn.speller))


TOOL_FIELDS = ("type", "name", "description", "parameters", "strict")


def _text(body: ResponseRequest) -> Json:
    asked = body.text.format if body.text else None
    shown = {"type": "text"} if asked is None else asked.model_dump(by_alias=True, exclude_none=True)
    return {"format": shown, "verbosity": body.text and body.text.verbosity}


def _code(error: ArilError) -> str:
    """The nearest of the codes that OpenAI's responses fail with."""
    if isinstance(error, RateLimited):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidRequest | TooLarge) else "server_error"
