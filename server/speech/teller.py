"""What a parser says it has heard, gathered into deltas, and the Listener that lets it hear."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Iterator
from itertools import count

from .base import CallDelta, Delta, joined
from .tape import Reading, Tape

ALPHABET = string.ascii_letters + string.digits
Script = Callable[["Tape", "Teller"], Reading[None]]


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{secrets.token_hex(12)}"


def short_call_id() -> str:
    """As `new_call_id`, in the nine characters that the templates of Mistral's models insist on."""
    return "".join(secrets.choice(ALPHABET) for _ in range(9))


class Teller:
    """Owner of what has been heard and not been told yet.

    White space between calls, and between words and a call, belongs to neither and is left out.
    """

    def __init__(
        self, new_id: Callable[[], str] = new_call_id, most: int | None = None, *, has_words: bool = True
    ) -> None:
        """`most`: how many calls there may be; later ones are left out. Without words nothing but calls is told."""
        self._has_words = has_words
        self._new_id = new_id
        self._most = most
        self._news: list[Delta] = []
        self._numbers: Iterator[int] = count()
        self._call: int | None = None  # the one that arguments belong to
        self._blanks = ""
        self._follows_call = False  # whether nothing but blanks has come since

    def say(self, text: str) -> None:
        """Words to the user."""
        words = (self._blanks + text).rstrip()
        self._blanks = (self._blanks + text)[len(words) :]
        if words and self._has_words:
            self._news.append(Delta(words))
            self._follows_call = False

    def open(self, name: str) -> None:
        """A call begins."""
        self._blanks, self._follows_call = "", True
        at = next(self._numbers)
        self._call = at if self._most is None or at < self._most else None
        if self._call is not None:
            self._news.append(Delta(calls=(CallDelta(at, self._new_id(), name),)))

    def argue(self, text: str) -> None:
        """The arguments of the call that began last go on."""
        if self._call is not None and text:
            self._news.append(Delta(calls=(CallDelta(self._call, arguments=text),)))

    def finish(self) -> None:
        """Nothing follows."""
        if self._blanks and not self._follows_call and self._has_words:
            self._news.append(Delta(self._blanks))
        self._blanks = ""

    def take(self) -> Delta:
        """All that has not been told."""
        news, self._news = self._news, []
        return joined(news)


class Scripted:
    """The Listener that lets a script read."""

    def __init__(self, script: Script, teller: Teller) -> None:
        self._tape = Tape()
        self._teller = teller
        self._reading = script(self._tape, teller)

    def feed(self, text: str) -> Delta:
        self._tape.add(text)
        next(self._reading, None)
        return self._teller.take()

    def end(self) -> Delta:
        self._tape.end()
        next(self._reading, None)
        self._teller.finish()
        return self._teller.take()
