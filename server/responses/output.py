"""What a model says becomes output items and their events, one after another. Knows neither HTTP nor what was asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ..speech.base import CallDelta
from ..turn import News
from .items import new_item_id
from .store import Json

Status = Literal["completed", "incomplete"]
Event = tuple[str, Json]  # its type, and its other fields; numbers are given by who sends it


class Output:
    """The items of one answer. The last of them may be open: news go on with it, or close it."""

    def __init__(self) -> None:
        self.items: list[Json] = []
        self._open: _Open | None = None
        self._scores: list[Json] = []  # of tokens whose text has not come yet

    @property
    def thinks(self) -> bool:
        """Whether the last that came were thoughts."""
        return isinstance(self._open, _Thoughts)

    def take(self, news: News, logprobs: Sequence[Json]) -> Iterator[Event]:
        """The events of the next news; `logprobs` are those of its tokens."""
        delta = news.delta
        if delta.reasoning:
            yield from self._going_on(_Thoughts)
            yield from self._say(delta.reasoning)
        if delta.content or not delta:
            self._scores += logprobs
        else:
            self._scores.clear()  # only what is said to the user is shown with them
        if delta.content:
            yield from self._going_on(_Words)
            yield from self._say(delta.content)
        for call in delta.calls:
            yield from self._call(call)

    def end(self, status: Status) -> Iterator[Event]:
        """The events of the end; an answer without a word is an empty message."""
        if self._open is None and not self.items:
            yield from self._going_on(_Words)
        if isinstance(self._open, _Words) and self._scores:
            yield from self._say("")
        yield from self._close(status)

    def _say(self, text: str) -> Iterator[Event]:
        assert self._open is not None
        scores, self._scores = (self._scores, []) if isinstance(self._open, _Words) else ([], self._scores)
        yield self._open.say(text, scores)

    def _going_on(self, kind: type[_Thoughts] | type[_Words]) -> Iterator[Event]:
        """Unless such an item is open, one is opened."""
        if not isinstance(self._open, kind):
            yield from self._begin(kind(len(self.items)))

    def _call(self, news: CallDelta) -> Iterator[Event]:
        if news.name is not None:
            yield from self._begin(_Call(len(self.items), news))
        if news.arguments:
            yield from self._say(news.arguments)

    def _begin(self, item: _Open) -> Iterator[Event]:
        yield from self._close("completed")
        self.items.append(item.shown)
        self._open = item
        yield from item.begin()

    def _close(self, status: Status) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.end(status)
            self._open = None


class _Open:
    """An item that grows. `kind` is its type, `said` the name of its events of text."""

    kind: str
    said: str

    def __init__(self, at: int, fields: Mapping[str, Any]) -> None:
        self.shown: Json = {"id": new_item_id(self.kind), "type": self.kind, "status": "in_progress", **fields}
        self._at = at
        self._text: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._text)

    def begin(self) -> Iterator[Event]:
        yield "response.output_item.added", {"output_index": self._at, "item": _copy(self.shown)}

    def say(self, text: str, scores: list[Json]) -> Event:
        self._text.append(text)
        return f"{self.said}.delta", {**self._place(), "delta": text}

    def end(self, status: Status) -> Iterator[Event]:
        self.shown["status"] = status
        yield "response.output_item.done", {"output_index": self._at, "item": _copy(self.shown)}

    def _place(self) -> Json:
        return {"item_id": self.shown["id"], "output_index": self._at}


class _Parted(_Open, ABC):
    """An item whose text is its one content part."""

    def __init__(self, at: int, fields: Mapping[str, Any]) -> None:
        super().__init__(at, {**fields, "content": []})

    @abstractmethod
    def part(self) -> Json:
        """The part as it stands."""

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        yield "response.content_part.added", {**self._place(), "part": self.part()}

    def end(self, status: Status) -> Iterator[Event]:
        part = self.part()
        yield f"{self.said}.done", {**self._place(), "text": self.text}
        yield "response.content_part.done", {**self._place(), "part": part}
        self.shown["content"] = [part]
        yield from super().end(status)

    def _place(self) -> Json:
        return {**super()._place(), "content_index": 0}


class _Thoughts(_Parted):
    kind, said = "reasoning", "response.reasoning_text"

    def __init__(self, at: int) -> None:
        super().__init__(at, {"summary": []})

    def part(self) -> Json:
        return {"type": "reasoning_text", "text": self.text}


class _Words(_Parted):
    kind, said = "message", "response.output_text"

    def __init__(self, at: int) -> None:
        super().__init__(at, {"role": "assistant"})
        self._scores: list[Json] = []

    def part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self._scores)}

    def say(self, text: str, scores: list[Json]) -> Event:
        self._scores += scores
        name, fields = super().say(text, scores)
        return name, {**fields, "logprobs": scores}

    def end(self, status: Status) -> Iterator[Event]:
        for name, fields in super().end(status):
            yield name, {**fields, "logprobs": list(self._scores)} if name.startswith(self.said) else fields


class _Call(_Open):
    kind, said = "function_call", "response.function_call_arguments"

    def __init__(self, at: int, news: CallDelta) -> None:
        super().__init__(at, {"call_id": news.id, "name": news.name, "arguments": ""})

    def end(self, status: Status) -> Iterator[Event]:
        self.shown["arguments"] = self.text
        yield f"{self.said}.done", {**self._place(), "name": self.shown["name"], "arguments": self.text}
        yield from super().end(status)


def _copy(item: Json) -> Json:
    """As it is at this moment: it grows on."""
    return {**item, "content": list(item["content"])} if "content" in item else dict(item)
