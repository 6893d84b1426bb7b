"""The ground of grammar backends: what they are told of the vocabulary, and what a matcher can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .asked import StructuredOutputs

Refusal = tuple[str, str | None]  # why, and the field at fault; None: that of the constraint, which `why` leaves out
Bits = NDArray[np.int32]  # [words_of(vocab)]: token t is bit t % 32 of word t // 32


@dataclass(frozen=True, slots=True)
class Busy:
    """Instead of a refusal or none: the constraint was not tried out to the end, as too many slow ones wait."""


def words_of(vocab_size: int) -> int:
    """Words that a mask of the vocabulary takes."""
    return -(-vocab_size // 32)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Every token as the bytes that it adds to a text; plain data that can be pickled."""

    tokens: Sequence[bytes]  # one for each id of the model; empty for an id without a token
    special: frozenset[int]  # what stands for no text
    eos: tuple[int, ...]  # what ends a text; at least one
    tokenizer: Tokenizer

    def encode(self, text: str) -> list[int] | None:
        """`text` as it is tokenised in the middle of another; None where the tokenizer cannot tell."""
        for lead in ("", "\n"):  # some tokenizers put a space before the first word of a text
            ids: list[int] = self.tokenizer.encode(lead + text, add_special_tokens=False).ids
            for at in range(len(ids) if lead else 1):
                if b"".join(self.tokens[token] for token in ids[at:]) == text.encode():
                    return ids[at:]
        return None


class Matcher(Protocol):
    """One text on its way through a grammar. One thread at a time. Its mask says whether it is done."""

    def fill(self, bits: Bits) -> None:
        """Set the bit of each token that may come next, and of the ends of sequence where the text may end.

        Raises InvalidRequest when the grammar turns out to be too complex to follow.
        """

    def accept(self, token: int) -> None:
        """Go on by a token that `fill` allowed and that does not end the text; raises InvalidRequest as `fill` does."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens."""


class Grammar(Protocol):
    """A constraint made ready. Any thread may ask for matchers."""

    def matcher(self) -> Matcher:
        """A matcher at the beginning."""


class Backend(Protocol):
    """A library that reads constraints, over one vocabulary. Any thread may ask."""

    def compile(self, asked: StructuredOutputs) -> Grammar:
        """Raises InvalidRequest that says what cannot be done. May take forever, or all memory: see guard.py."""


class BackendKind(Protocol):
    """What a file in backends/ exports."""

    def __call__(self, vocabulary: Vocabulary) -> Backend: ...
