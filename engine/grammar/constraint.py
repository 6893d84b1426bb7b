"""Constraint: one row's matcher with the mask of its next token, which is filled while the device computes.

It decides what the tokens that end a text may do: they are allowed exactly where the grammar may end, and where
nothing else may follow they always are, whatever else a request says about them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ...core.errors import ArilError
from .asked import StructuredOutputs
from .base import Bits, Matcher, words_of
from .thoughts import Thinking, Thoughts


class Constraint:
    """Owner of a matcher and its mask. Between `begin` and `bits` they are another thread's."""

    def __init__(
        self,
        matcher: Matcher,
        vocab_size: int,
        *,
        eos: Sequence[int],
        ends: Sequence[int],
        thinking: Thinking | None = None,
    ) -> None:
        """`eos`: what the matcher allows where the text may end; `ends`: what of it, and what else, ends this one."""
        self._matcher = matcher
        self._thinking = thinking
        self._eos = tuple(eos)
        self._ends = tuple(ends)
        self._bits: Bits = np.zeros(words_of(vocab_size), np.int32)
        self._filling: Future[None] | None = None
        self.error: ArilError | None = None  # why this row cannot go on
        self.done = False  # whether the text is complete and only its end may follow

    def took(self, token: int) -> bool:
        """Go on by a drawn token; whether there is a next one to fill the mask for."""
        if token in self._eos or token in self._ends:
            return False
        if self._thinking is not None and self._thinking.took(token):
            return True
        try:
            self._matcher.accept(token)
        except ArilError as error:
            self.error = error
        return self.error is None

    def bits(self) -> Bits:
        """The mask of the next token; waits for it."""
        if self._filling is not None:
            self._filling.result()
            self._filling = None
        return self._bits

    def begin(self, filling: Future[None]) -> None:
        """The mask is there when `filling` is done."""
        self._filling = filling

    def fill(self) -> None:
        """Work the mask out."""
        if self.error is not None:
            return
        if self._thinking is not None and self._thinking.is_open:
            self._bits.fill(-1)
            for token in (*self._eos, *self._ends):
                _clear(self._bits, token)
            return
        try:
            self._matcher.fill(self._bits)
        except ArilError as error:
            self.error = error
            return
        for token in () if self._thinking is None else self._thinking.may_begin:
            _set(self._bits, token)
        may_end = any(_has(self._bits, token) for token in self._eos)
        for token in (*self._eos, *self._ends):
            _clear(self._bits, token)
        self.done = may_end and not self._bits.any()
        if may_end:
            for token in (*self._ends, *(self._eos if self.done else ())):
                _set(self._bits, token)


class Constraints:
    """Makes the constraints of rows, and has one thread fill their masks while others work."""

    def __init__(
        self,
        matcher: Callable[[StructuredOutputs], Matcher],
        vocab_size: int,
        eos: Sequence[int],
        token_bytes: Callable[[int], bytes],
    ) -> None:
        """`matcher` makes one of a grammar that is ready, over `vocab_size` tokens that `eos` are among."""
        self._token_bytes = token_bytes
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos = tuple(eos)
        self._thread = ThreadPoolExecutor(1, "grammar-masks")

    def of(
        self, asked: StructuredOutputs, thoughts: Thoughts | None, *, ends: Sequence[int], output: Sequence[int]
    ) -> Constraint:
        """One of a text that has come as far as `output`; its first mask is filled from now on."""
        thinking = None if thoughts is None else Thinking(thoughts, self._token_bytes)
        constraint = Constraint(self._matcher(asked), self._vocab_size, eos=self._eos, ends=ends, thinking=thinking)
        for token in output:
            constraint.took(token)
        self.fill([constraint])
        return constraint

    def fill(self, constraints: Sequence[Constraint]) -> None:
        """Begin to fill their masks, in order."""
        filling = self._thread.submit(_fill_all, constraints)
        for constraint in constraints:
            constraint.begin(filling)


def _fill_all(constraints: Sequence[Constraint]) -> None:
    for constraint in constraints:
        constraint.fill()


def _has(bits: Bits, token: int) -> bool:
    return bool(bits[token >> 5] >> (token & 31) & 1)


def _set(bits: Bits, token: int) -> None:
    bits.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))


def _clear(bits: Bits, token: int) -> None:
    bits.view(np.uint32)[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
