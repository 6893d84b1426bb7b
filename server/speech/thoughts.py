"""Thoughts before the answer, between two marks: how models write them, and the Listener that tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base import Delta, Listener, joined
from .tape import Reading, Tape


@dataclass(frozen=True, slots=True)
class ThoughtFormat:
    """What a file in reasoning/ exports. A mark may be written in several ways, and shows even as a special token."""

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    always: bool = False  # thoughts come first even where no mark begins them

    @property
    def marks(self) -> tuple[str, ...]:
        """All of them."""
        return self.begins + self.ends

    def is_open_after(self, prompt: str, *, goes_on: bool = False) -> bool | None:
        """Whether an answer to `prompt` begins amid thoughts; None: it says so itself.

        With `goes_on` the prompt is the beginning of the same answer, and a mark may stand anywhere in it.
        """
        begins, ends = ([(prompt.rfind(mark), len(mark)) for mark in marks] for marks in (self.begins, self.ends))
        at, length = max(*begins, *ends, (-1, 0))
        if at < 0 or not (goes_on or prompt[at + length :].strip() == ""):
            return True if self.always else None
        return (at, length) in begins

    def listener(self, rest: Listener, is_open: bool | None) -> Thinking:
        """`rest` hears what follows the thoughts."""
        return Thinking(self, rest, is_open)


class Thinking:
    """The Listener. White space at the borders of thoughts is left out."""

    def __init__(self, form: ThoughtFormat, rest: Listener, is_open: bool | None) -> None:
        self._form = form
        self._rest = rest
        self._tape = Tape()
        self._news: list[Delta] = []
        self._blanks: str | None = None  # held back in thoughts; None before the first word
        self._reading = self._script(is_open)

    def feed(self, text: str) -> Delta:
        self._tape.add(text)
        next(self._reading, None)
        return self._take()

    def end(self) -> Delta:
        self._tape.end()
        next(self._reading, None)
        self._news.append(self._rest.end())
        return self._take()

    def _script(self, is_open: bool | None) -> Reading[None]:
        if is_open is not False:
            blanks = yield from self._tape.blanks()
            begun = yield from self._takes_any(self._form.begins)
            if begun or is_open:
                yield from self._tape.until(self._form.ends, self._think)
                blanks = ""
                yield from self._tape.blanks()
            self._hear(blanks)
        yield from self._tape.until([], self._hear)

    def _takes_any(self, marks: Sequence[str]) -> Reading[bool]:
        for mark in marks:
            if (yield from self._tape.takes(mark)):
                return True
        return False

    def _think(self, text: str) -> None:
        if self._blanks is None:
            text = text.lstrip()
        words = ((self._blanks or "") + text).rstrip()
        if words:
            self._blanks = ((self._blanks or "") + text)[len(words) :]
            self._news.append(Delta(reasoning=words))
        elif self._blanks is not None:
            self._blanks += text

    def _hear(self, text: str) -> None:
        if text:
            self._news.append(self._rest.feed(text))

    def _take(self) -> Delta:
        news, self._news = self._news, []
        return joined(news)
