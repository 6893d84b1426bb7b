"""What the text of an answer turns out to be: words, thoughts, calls of tools. Knows no HTTP and no model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CallDelta:
    """News of one tool call: `id` and `name` come once, with the first."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """What a piece of text turned out to be; each call is in it at most once."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class Listener(Protocol):
    """Hears one choice. What the deltas say together does not depend on how the text was cut."""

    def feed(self, text: str) -> Delta:
        """The next piece of the text; some of it may be held back until it is known what it is."""

    def end(self) -> Delta:
        """Nothing follows: what was held back."""


class Plain:
    """The Listener for which everything is said to the user."""

    def feed(self, text: str) -> Delta:
        return Delta(text)

    def end(self) -> Delta:
        return Delta()


@dataclass(slots=True)
class Call:
    """One whole tool call; `arguments` is JSON as the model wrote it."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Heard:
    """All that the deltas of one choice have said so far."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def take(self, delta: Delta) -> None:
        """Append one delta."""
        self.content += delta.content
        self.reasoning += delta.reasoning
        for news in delta.calls:
            if news.index == len(self.calls):
                assert news.id is not None
                assert news.name is not None
                self.calls.append(Call(news.id, news.name))
            self.calls[news.index].arguments += news.arguments


def joined(deltas: Iterable[Delta]) -> Delta:
    """Several deltas as one."""
    content = reasoning = ""
    calls: dict[int, CallDelta] = {}
    for delta in deltas:
        content += delta.content
        reasoning += delta.reasoning
        for news in delta.calls:
            first = calls.get(news.index)
            calls[news.index] = (
                news if first is None else CallDelta(news.index, first.id, first.name, first.arguments + news.arguments)
            )
    return Delta(content, reasoning, tuple(calls.values()))
