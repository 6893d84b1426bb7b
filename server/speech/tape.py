"""A text that comes in pieces, and the generators that read it: straight-line parsers that wait for more by yielding.

What such a parser finds cannot depend on how the text was cut: it looks at one character, or waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
Sink = Callable[[str], None]
BLANKS = tuple(" \t\r\n")  # JSON's
BLANK = re.compile(r"[ \t\r\n]+")


class Tape:
    """Owner of the text and of how far it has been read."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._kept: int | None = None  # where what is remembered begins
        self._ended = False

    def add(self, text: str) -> None:
        """The next piece."""
        start = self._at if self._kept is None else self._kept
        self._text, self._at = self._text[start:] + text, self._at - start
        self._kept = None if self._kept is None else 0

    def end(self) -> None:
        """There are no more."""
        self._ended = True

    def peek(self) -> Reading[str]:
        """The next character, which stays; "" at the end."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def next(self) -> str:
        """Read the character that `peek` has shown."""
        self._at += 1
        return self._text[self._at - 1]

    def run(self, pattern: re.Pattern[str]) -> str:
        """What of the text that is there matches `pattern`; more of it may follow."""
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found.group()

    def starts(self, word: str) -> Reading[bool]:
        """Whether `word` follows; it stays. Waits only as long as it may."""
        while True:
            there = self._text[self._at : self._at + len(word)]
            if len(there) == len(word) or self._ended or not word.startswith(there):
                return there == word
            yield

    def takes(self, word: str) -> Reading[bool]:
        """Whether `word` follows; then it is read."""
        found = yield from self.starts(word)
        if found:
            self._at += len(word)
        return found

    def blanks(self) -> Reading[str]:
        """All white space that follows."""
        found = ""
        while (yield from self.peek()) in BLANKS:
            found += self.run(BLANK)
        return found

    def until(self, marks: Collection[str], sink: Sink) -> Reading[str]:
        """Tell `sink` the text before the first of `marks`, as it comes; the mark, which is read, or "" at the end."""
        while True:
            found = [(at, -len(mark), mark) for mark in marks if (at := self._text.find(mark, self._at)) >= 0]
            at, _, mark = min(found, default=(len(self._text) - self._begun(marks), 0, ""))
            if at > self._at:
                sink(self._text[self._at : at])
            self._at = at + len(mark)
            if mark:
                return mark
            if self._ended:
                if self._at < len(self._text):
                    sink(self._text[self._at :])
                    self._at = len(self._text)
                return ""
            yield

    def keep(self) -> None:
        """From here on the text is remembered, until `kept`."""
        self._kept = self._at

    def kept(self) -> str:
        """What has been read since the last `keep`, if that is not over; now it is."""
        since = self._at if self._kept is None else self._kept
        self._kept = None
        return self._text[since : self._at]

    def _begun(self, marks: Collection[str]) -> int:
        """Characters at the end of the text that may be the beginning of a mark."""
        longest = max(map(len, marks), default=1) - 1
        tail = self._text[max(self._at, len(self._text) - longest) :]
        for at, char in enumerate(tail):
            if any(char == mark[0] and mark.startswith(tail[at:]) for mark in marks):
                return len(tail) - at
        return 0
