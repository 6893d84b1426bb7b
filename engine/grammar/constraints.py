"""Constraints: makes the constraints of rows, and has one thread fill their masks while others work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from .asked import StructuredOutputs
from .base import Grammar
from .constraint import Constraint, Whole
from .spanned import Spanned, SpannedGrammar
from .thoughts import Thinking, Thoughts


class Constraints:
    """Of one vocabulary."""

    def __init__(
        self,
        grammar: Callable[[StructuredOutputs], Grammar],
        vocab_size: int,
        eos: Sequence[int],
        token_bytes: Callable[[int], bytes],
    ) -> None:
        """`grammar` finds one that is ready, over `vocab_size` tokens that `eos` are among."""
        self._token_bytes = token_bytes
        self._grammar = grammar
        self._vocab_size = vocab_size
        self._eos = tuple(eos)
        self._thread = ThreadPoolExecutor(1, "grammar-masks")

    def of(
        self, asked: StructuredOutputs, thoughts: Thoughts | None, *, ends: Sequence[int], output: Sequence[int]
    ) -> Constraint:
        """One of a text that has come as far as `output`; its first mask is filled from now on."""
        constraint = self._new(asked, None if thoughts is None else Thinking(thoughts, self._token_bytes), ends)
        constraint.took_all(output)
        self.fill([constraint])
        return constraint

    def fill(self, constraints: Sequence[Constraint]) -> None:
        """Begin to fill their masks, in order."""
        filling = self._thread.submit(_fill_all, constraints)
        for constraint in constraints:
            constraint.begin(filling)

    def _new(self, asked: StructuredOutputs, thinking: Thinking | None, ends: Sequence[int]) -> Constraint:
        grammar, size = self._grammar(asked), self._vocab_size
        if isinstance(grammar, SpannedGrammar):
            return Spanned(grammar, size, self._token_bytes, eos=self._eos, ends=ends, thinking=thinking)
        return Whole(grammar.matcher(), size, eos=self._eos, ends=ends, thinking=thinking)


def _fill_all(constraints: Sequence[Constraint]) -> None:
    for constraint in constraints:
        constraint.fill()
