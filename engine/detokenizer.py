"""Tokens to text as they come: no half characters, and nothing held back but what may still become a stop string.

Each token costs its own bytes only: the UTF-8 decoder and the stop matchers keep all the state there is.
"""

from __future__ import annotations

import codecs
import copy
from collections.abc import Sequence

from .params import SamplingParams
from .pieces import Pieces

LONGEST_CHARACTER = 4  # bytes of UTF-8, so at most this many tokens of the prompt can reach into the output


class Detokenizer:
    """The text of one choice. `stop` is the stop string that ended it, once one has been found.

    The text continues the prompt: a leading space stays, and a character that the prompt left unfinished is completed.
    Bytes that are no UTF-8 become U+FFFD; a character that the end cuts short is left out, as its bytes are no error.
    """

    def __init__(self, pieces: Pieces, params: SamplingParams, prompt: Sequence[int]) -> None:
        self.stop: str | None = None
        self._pieces = pieces
        shown = frozenset(params.shown_token_ids) if params.skip_special_tokens else pieces.special
        self._hidden = pieces.special - shown
        self._unarmed = params.min_tokens  # tokens that no stop string may end at
        self._include_stop = params.include_stop_str_in_output
        self._matchers = [_Matcher(stop) for stop in params.stop]
        self._held = ""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = pieces.drops_first_space and all(token in self._hidden for token in prompt)
        for token in prompt[-LONGEST_CHARACTER:]:
            if token not in self._hidden:
                self._utf8.decode(pieces[token])

    def fork(self) -> Detokenizer:
        """One that goes on from here by itself."""
        other = copy.copy(self)
        other._matchers = [copy.copy(matcher) for matcher in self._matchers]
        other._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        other._utf8.setstate(self._utf8.getstate())
        return other

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens make certain; tokens after a stop string add none."""
        certain = ""
        for token in token_ids:
            self._unarmed -= 1
            if self.stop is None and token not in self._hidden:
                certain += self._release(self._utf8.decode(self._pieces[token]))
        return certain

    def finish(self) -> str:
        """What was held back as it might have become a stop string, at the end."""
        certain, self._held = self._held, ""
        return certain

    def _release(self, text: str) -> str:
        if self._at_start and text:
            self._at_start = False
            text = text.removeprefix(" ")
        if not self._matchers:
            return text
        buffer, held = self._held + text, len(self._held)
        for at, char in enumerate(text, start=held + 1):
            if (found := self._advance(char)) is not None:
                self.stop, self._held = found, ""
                return buffer[: at if self._include_stop else at - len(found)]
        certain = len(buffer) - max(m.matched for m in self._matchers)
        self._held = buffer[certain:]
        return buffer[:certain]

    def _advance(self, char: str) -> str | None:
        """The stop string that `char` completes; the longest, should there be several."""
        complete = [m.text for m in self._matchers if m.advance(char)]
        return max(complete, key=len) if complete and self._unarmed < 0 else None


class _Matcher:
    """How much of one stop string the end of the text has matched (Knuth, Morris and Pratt)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._shorter = _borders(text)

    def advance(self, char: str) -> bool:
        """Whether `char` completes the string. `matched` then counts what may begin the next occurrence."""
        self.matched = _step(self.text, self._shorter, self.matched, char)
        if self.matched < len(self.text):
            return False
        self.matched = self._shorter[-1]
        return True


def _borders(text: str) -> list[int]:
    """For each prefix of `text`, the length of its longest proper prefix that is also its suffix."""
    borders = [0]
    for char in text[1:]:
        borders.append(_step(text, borders, borders[-1], char))
    return borders


def _step(text: str, borders: list[int], matched: int, char: str) -> int:
    while matched and text[matched] != char:
        matched = borders[matched - 1]
    return matched + 1 if text[matched] == char else 0
