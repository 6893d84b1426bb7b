"""Constraint: one row's mask of its next token, which is filled while the device computes; and that of a whole text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from ...core.errors import ArilError
from .base import Bits, Matcher, words_of
from .thoughts import Thinking


class Constraint(ABC):
    """Owner of a mask. Between `begin` and `bits` it is another thread's."""

    def __init__(self, vocab_size: int, *, eos: Sequence[int], ends: Sequence[int]) -> None:
        """`eos`: what a matcher allows where the text may end; `ends`: what of it, and what else, ends this one."""
        self._eos = tuple(eos)
        self._ends = tuple(ends)
        self._bits: Bits = np.zeros(words_of(vocab_size), np.int32)
        self._filling: Future[None] | None = None
        self.error: ArilError | None = None  # why this row cannot go on
        self.done = False  # whether the text is complete and only its end may follow

    @abstractmethod
    def took(self, token: int) -> bool:
        """Go on by a drawn token; whether there is a next one to fill the mask for."""

    def took_all(self, tokens: Sequence[int]) -> None:
        """Go on by tokens that were drawn before."""
        for token in tokens:
            self.took(token)

    @abstractmethod
    def fill(self) -> None:
        """Work the mask out."""

    def bits(self) -> Bits | None:
        """The mask of the next token; waits for it. None: any may come."""
        if self._filling is not None:
            self._filling.result()
            self._filling = None
        return self._bits

    def begin(self, filling: Future[None]) -> None:
        """The mask is there when `filling` is done."""
        self._filling = filling

    def _take_ends(self) -> bool:
        """Have none of what ends a text allowed; whether the matcher would have the text end here."""
        may_end = any(has(self._bits, token) for token in self._eos)
        for token in (*self._eos, *self._ends):
            clear(self._bits, token)
        return may_end


class Whole(Constraint):
    """Of a text that is held to a form from its first token, or from the end of its thoughts.

    What ends a text is allowed exactly where the form may end, and where nothing else may follow it always is,
    whatever else a request says about it.
    """

    def __init__(
        self,
        matcher: Matcher,
        vocab_size: int,
        *,
        eos: Sequence[int],
        ends: Sequence[int],
        thinking: Thinking | None = None,
    ) -> None:
        super().__init__(vocab_size, eos=eos, ends=ends)
        self._matcher = matcher
        self._thinking = thinking

    def took(self, token: int) -> bool:
        if token in self._eos or token in self._ends:
            return False
        if self._thinking is not None and self._thinking.took(token):
            return True
        try:
            self._matcher.accept(token)
        except ArilError as error:
            self.error = error
        return self.error is None

    def fill(self) -> None:
        if self.error is not None:
            return
        if self._thinking is not None and self._thinking.is_open:
            self._bits.fill(-1)
            self._take_ends()
            return
        try:
            self._matcher.fill(self._bits)
        except ArilError as error:
            self.error = error
            return
        for token in () if self._thinking is None else self._thinking.may_begin:
            set_(self._bits, token)
        may_end = self._take_ends()
        self.done = may_end and not self._bits.any()
        if may_end:
            for token in (*self._ends, *(self._eos if self.done else ())):
                set_(self._bits, token)


def has(bits: Bits, token: int) -> bool:
    """Whether a mask allows a token."""
    return bool(bits[token >> 5] >> (token & 31) & 1)


def set_(bits: Bits, token: int) -> None:
    """Allow it."""
    bits.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))


def clear(bits: Bits, token: int) -> None:
    """Forbid it."""
    bits.view(np.uint32)[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
