"""What a model says becomes content blocks and their events, one after another."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from ..deps import Face
from ..renamed import spoken
from ..speech.base import CallDelta, Delta
from ..turn import News, Turn
from .asked import NAMES
from .blocks import Json

Event = tuple[str, Json]  # its type, and its other fields
DELTAS = {  # type of a block -> type of its deltas, and the field of these that grows it
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class Content:
    """The blocks of one message. The last of them may be open: news go on with it, or close it."""

    def __init__(self) -> None:
        self._blocks: list[Json] = []
        self._said: list[list[str]] = []  # of each block, its text in pieces

    @property
    def has_calls(self) -> bool:
        """Whether a tool is to be used."""
        return any(block["type"] == "tool_use" for block in self._blocks)

    def whole(self) -> list[Json]:
        """The blocks, finished."""
        return [_finished(block, "".join(said)) for block, said in zip(self._blocks, self._said, strict=True)]

    def end(self) -> Iterator[Event]:
        """The events of the end."""
        if self._blocks:
            yield "content_block_stop", {"index": len(self._blocks) - 1}

    def take(self, delta: Delta) -> Iterator[Event]:
        """The events of the next news."""
        if delta.reasoning:
            yield from self._going_on({"type": "thinking", "thinking": "", "signature": ""})
            yield self._say(delta.reasoning)
        if delta.content:
            yield from self._going_on({"type": "text", "text": ""})
            yield self._say(delta.content)
        for call in delta.calls:
            yield from self._call(call)

    def _call(self, news: CallDelta) -> Iterator[Event]:
        if news.name is not None:
            yield from self._begin({"type": "tool_use", "id": news.id, "name": news.name, "input": {}})
        if news.arguments:
            yield self._say(news.arguments)

    def _going_on(self, block: Json) -> Iterator[Event]:
        """Unless a block of that type is open, this one is opened."""
        if not self._blocks or self._blocks[-1]["type"] != block["type"]:
            yield from self._begin(block)

    def _begin(self, block: Json) -> Iterator[Event]:
        yield from self.end()
        self._blocks.append(block)
        self._said.append([])
        yield "content_block_start", {"index": len(self._blocks) - 1, "content_block": block}

    def _say(self, text: str) -> Event:
        self._said[-1].append(text)
        kind, name = DELTAS[self._blocks[-1]["type"]]
        return "content_block_delta", {"index": len(self._blocks) - 1, "delta": {"type": kind, name: text}}


@dataclass(slots=True)
class Telling:
    """One message on its way. `reaches_end`: at its bound it has filled the context, not what was asked for."""

    turn: Turn
    model: str
    reaches_end: bool
    _content: Content = field(default_factory=Content)
    _last: News | None = None

    @property
    def id(self) -> str:
        """Of the message."""
        return self.turn.work.id

    async def events(self, face: Face) -> AsyncGenerator[Event, None]:
        """From message_start to message_stop. What goes wrong is raised."""
        async with aclosing(spoken(self.turn.news(face), NAMES)) as stream:
            async for news in stream:
                if self._last is None:
                    yield "message_start", {"message": self._message([])}
                    yield "ping", {}
                self._last = news
                for event in self._content.take(news.delta):
                    yield event
        for event in self._content.end():
            yield event
        ended = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_sequence()}
        yield "message_delta", {"delta": ended, "usage": self._usage()}
        yield "message_stop", {}

    def whole(self) -> Json:
        """The message, once all has been told."""
        return {
            **self._message(self._content.whole()),
            "stop_reason": self._stop_reason(),
            "stop_sequence": self._stop_sequence(),
        }

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def _usage(self) -> Json:
        shown = self.turn.usage.shown()
        cached = shown["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": shown["prompt_tokens"] - cached,  # as Anthropic counts: those that were computed
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": shown["completion_tokens"],
        }

    def _stop_reason(self) -> str:
        assert self._last is not None
        if self._last.finish_reason == "length":
            return "model_context_window_exceeded" if self.reaches_end else "max_tokens"
        if self._content.has_calls:  # a call that was named ends like any text in OpenAI's words
            return "tool_use"
        return "end_turn" if self._stop_sequence() is None else "stop_sequence"

    def _stop_sequence(self) -> str | None:
        reason = None if self._last is None else self._last.chunk.stop_reason
        return reason if isinstance(reason, str) else None


def _finished(block: Json, said: str) -> Json:
    if block["type"] != "tool_use":
        return {**block, DELTAS[block["type"]][1]: said}
    return {**block, "input": _input(said)}


def _input(said: str) -> Mapping[str, Any]:
    """The arguments of a call; what is no object stands in one, as a message has room for nothing else."""
    try:
        found = json.loads(said or "{}")
    except ValueError:
        found = said
    return found if isinstance(found, dict) else {"arguments": found}
