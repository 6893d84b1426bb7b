"""A text that is free but for its spans: which of its tokens are held to a form, and by which mask.

Outside of them nothing stands between the model and its words, not even a mask, with one exception: a token that ends a
mark and goes on beyond it comes only if a form begins so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...core.errors import ArilError, InvalidRequest
from .asked import StructuredOutputs
from .base import Bits, Grammar, Matcher, Vocabulary
from .constraint import Constraint, clear
from .thoughts import Thinking


class SpannedGrammar:
    """The Grammar of what stands behind a mark, and what it takes to begin in the middle of a token."""

    def __init__(self, asked: StructuredOutputs, grammar: Grammar, vocabulary: Vocabulary) -> None:
        assert asked.spans is not None
        self._asked = asked
        self._grammar = grammar
        self.marks = tuple(mark.encode() for mark in asked.spans.marks)
        self._spelled: dict[bytes, list[int] | None] = {b"": []}  # beginnings as tokens; None: no form begins so
        self._refused: dict[bytes, list[int]] = {}  # by the part of a mark that has come: what may not follow
        for came, token, beyond in _crossing(self.marks, vocabulary):
            if beyond not in self._spelled:
                self._spelled[beyond] = self._tried(beyond, vocabulary)
            if self._spelled[beyond] is None:
                self._refused.setdefault(came, []).append(token)

    def matcher(self) -> Matcher:
        return self._grammar.matcher()

    def after(self, beginning: bytes) -> Matcher:
        """A matcher that has gone on by what a token wrote behind a mark; raises InvalidRequest if none can."""
        tokens = self._spelled.get(beginning)
        if tokens is None:
            raise self._asked.refused("the text could not be followed through the grammar")
        matcher = self.matcher()
        for token in tokens:
            matcher.accept(token)
        return matcher

    def refused(self, tail: bytes) -> Iterator[int]:
        """The tokens that may not follow a free text that ends so."""
        return (token for came, tokens in self._refused.items() if tail.endswith(came) for token in tokens)

    def _tried(self, beginning: bytes, vocabulary: Vocabulary) -> list[int] | None:
        """`beginning` as tokens that the grammar takes."""
        try:
            tokens = vocabulary.encode(beginning.decode())
            matcher = self.matcher()
            for token in tokens or ():
                matcher.accept(token)
        except (UnicodeDecodeError, InvalidRequest):
            return None
        return tokens


class Spanned(Constraint):
    """The Constraint. Owner of where the text is: free, or in a span."""

    def __init__(
        self,
        grammar: SpannedGrammar,
        vocab_size: int,
        token_bytes: Callable[[int], bytes],
        *,
        eos: Sequence[int],
        ends: Sequence[int],
        thinking: Thinking | None = None,
    ) -> None:
        super().__init__(vocab_size, eos=eos, ends=ends)
        self._grammar = grammar
        self._token_bytes = token_bytes
        self._thinking = thinking
        self._span: Matcher | None = None
        self._tail = b""  # of the free text: all that may be the beginning of a mark
        self._is_masked = False

    def took(self, token: int) -> bool:
        self._is_masked = False
        if self._thinking is not None and self._thinking.took(token):
            return False
        try:
            if self._span is not None:
                self._span.accept(token)
            else:
                self._hear(self._token_bytes(token))
        except ArilError as error:
            self.error = error
            return False
        return self._span is not None or any(True for _ in self._grammar.refused(self._tail))

    def took_all(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.took(token):
                self.fill()  # which knows where a span is over

    def fill(self) -> None:
        if self._span is not None:
            self._fill_in(self._span)
        if self._span is None and self.error is None:
            self._bits.fill(-1)
            for token in self._grammar.refused(self._tail):
                clear(self._bits, token)
                self._is_masked = True

    def bits(self) -> Bits | None:
        bits = super().bits()
        return bits if self._is_masked else None

    def _hear(self, text: bytes) -> None:
        """More of the free text, in which a mark may end."""
        text = self._tail + text
        at, mark = min(((at, mark) for mark in self._grammar.marks if (at := text.find(mark)) >= 0), default=(-1, b""))
        if mark:
            self._span, self._tail = self._grammar.after(text[at + len(mark) :]), b""
        else:
            self._tail = text[1 - max(map(len, self._grammar.marks)) :]

    def _fill_in(self, span: Matcher) -> None:
        """The mask within a span, which is over as soon as it may be."""
        try:
            span.fill(self._bits)
        except ArilError as error:
            self.error = error
            return
        self._is_masked = not self._take_ends()
        if not self._is_masked:
            self._span = None


def _crossing(marks: Sequence[bytes], vocabulary: Vocabulary) -> Iterator[tuple[bytes, int, bytes]]:
    """Each token that ends a mark and goes on: what of the mark came before, the token, and what it writes beyond."""
    for mark in marks:
        ends = tuple(mark[at:] for at in range(1, len(mark)))
        for token, text in enumerate(vocabulary.tokens):
            if text.startswith(ends):
                for end in ends:
                    if text.startswith(end) and text != end:
                        yield mark[: -len(end)], token, text[len(end) :]
            if mark in text and not text.endswith(mark):
                yield b"", token, text[text.find(mark) + len(mark) :]
