"""Rules on logits: bias, masks and penalties, in the one order in which they apply.

A rule touches only the tokens it speaks of, of all its rows at once; rows that ask for no rule cost nothing. What comes
after (temperature and truncation) is `draw`'s. The order and the meanings are vLLM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.ops.masks import mask_tokens_
from .grammar.base import Bits, words_of
from .grammar.constraint import Constraint
from .params import SamplingParams

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class History:
    """How often each token stands in a row's output, and which stand in its prompt; one token costs O(1)."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        distinct = np.unique(np.asarray(prompt, np.int64))
        self._size = len(distinct)
        self._ids: Ints = np.resize(distinct, max(64, 2 * self._size))
        self._counts: Floats = np.zeros(len(self._ids), np.float32)
        self._at = {int(token): at for at, token in enumerate(distinct)}
        for token in output:
            self.add(token)

    def add(self, token: int) -> None:
        """One more output token."""
        at = self._at.setdefault(token, self._size)
        if at == self._size:
            self._grow(token)
        self._counts[at] += 1

    @property
    def ids(self) -> Ints:
        """The distinct tokens."""
        return self._ids[: self._size]

    @property
    def counts(self) -> Floats:
        """How often each of `ids` stands in the output; 0 for a token of the prompt alone."""
        return self._counts[: self._size]

    def _grow(self, token: int) -> None:
        if self._size == len(self._ids):
            self._ids = np.resize(self._ids, 2 * self._size)
            self._counts = np.concatenate([self._counts, np.zeros(self._size, np.float32)])
        self._ids[self._size] = token
        self._size += 1


class BadWords:
    """Sequences of tokens that a row's output may not complete; one token costs a look-up for each length of them."""

    def __init__(self, sequences: Sequence[Sequence[int]], output: Sequence[int]) -> None:
        self._last: dict[tuple[int, ...], list[int]] = {}  # by all before it: the tokens that would complete one
        for *before, last in sequences:
            self._last.setdefault(tuple(before), []).append(last)
        self._lengths = sorted({len(before) for before in self._last})
        self._tail = list(output[-self._lengths[-1] :]) if self._lengths[-1] else []

    def add(self, token: int) -> None:
        """One more output token."""
        self._tail = [*self._tail, token][-self._lengths[-1] :] if self._lengths[-1] else []

    def tokens(self) -> Ints:
        """What may not come next."""
        ends = (tuple(self._tail[len(self._tail) - n :]) for n in self._lengths if n <= len(self._tail))
        return np.asarray([token for before in ends for token in self._last.get(before, ())], np.int64)


class Allowed:
    """The only tokens that a row may have, as packed bits."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = np.asarray(tokens, np.int64)
        self._bits: Bits | None = None

    def bits(self, vocab_size: int) -> Bits:
        """The mask of a vocabulary; made once."""
        if self._bits is None:
            flags = np.zeros(32 * words_of(vocab_size), np.uint8)
            flags[self._tokens] = 1
            self._bits = np.packbits(flags, bitorder="little").view(np.int32)
        return self._bits


@dataclass(slots=True)
class RuledRow:
    """What the rules know of one row. `num_output`, `history` and `bad_words` move on with `took`."""

    params: SamplingParams
    history: History | None  # None: no penalty asks for it
    enders: Ints  # the tokens that may end the text: end of sequence and stop ids
    num_output: int
    allowed: Allowed | None = None  # None: all
    bad_words: BadWords | None = None
    constraint: Constraint | None = None

    @classmethod
    def of(cls, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], eos: Sequence[int]) -> RuledRow:
        """`eos`: end-of-sequence ids of the model; they end no text of a request that ignores them."""
        history = None
        if params.repetition_penalty != 1.0:
            history = History(prompt, output)
        elif params.presence_penalty or params.frequency_penalty:
            history = History((), output)
        enders = {*params.stop_token_ids, *(() if params.ignore_eos else eos)}
        allowed = None if params.allowed_token_ids is None else Allowed(params.allowed_token_ids)
        bad_words = BadWords(params.bad_words_ids, output) if params.bad_words_ids else None
        return cls(params, history, np.asarray(sorted(enders), np.int64), len(output), allowed, bad_words)

    @property
    def delays_end(self) -> bool:
        """Whether no token may end the text now."""
        return self.num_output < self.params.min_tokens

    @property
    def has_rules(self) -> bool:
        """Whether any rule applies to the next token."""
        asked = (self.history, self.allowed, self.bad_words, self.constraint)
        return bool(self.params.logit_bias) or self.delays_end or any(rule is not None for rule in asked)

    @property
    def must_end(self) -> bool:
        """Whether its constraint allows nothing but the end of the text."""
        return self.constraint is not None and self.constraint.done

    def bits(self, vocab_size: int) -> Bits | None:
        """The mask of what may come next; None: all. Where the text must end, `allowed_token_ids` has no say."""
        only = None if self.allowed is None else self.allowed.bits(vocab_size)
        if self.constraint is None:
            return only
        held = self.constraint.bits()
        if held is None:
            return only
        return held if only is None or self.constraint.done else held & only

    def took(self, token: int) -> None:
        """One more output token."""
        self.num_output += 1
        for past in (self.history, self.bad_words):
            if past is not None:
                past.add(token)


Ruled = Sequence[tuple[int, RuledRow]]  # row of the logits, and what it asks


def apply_rules(logits: Tensor, rows: Ruled) -> None:
    """Change `logits` [S, vocab] in place by every rule, in order."""
    for rule in (allow, ban, mask_enders, add_bias, penalise):
        rule(logits, rows)


def allow(logits: Tensor, rows: Ruled) -> None:
    """No token but those of `allowed_token_ids`, and of them none that the constraint of a row does not allow."""
    masks = [(at, bits) for at, row in rows if (bits := row.bits(logits.shape[1])) is not None]
    if masks:
        places = np.asarray([at for at, _ in masks], np.int64)
        mask_tokens_(logits, _on(logits, places), _on(logits, np.stack([bits for _, bits in masks])))


def ban(logits: Tensor, rows: Ruled) -> None:
    """No token that would complete one of `bad_words`, unless the text must end."""
    _forbid(logits, [(at, row.bad_words.tokens()) for at, row in rows if row.bad_words and not row.must_end])


def mask_enders(logits: Tensor, rows: Ruled) -> None:
    """Before `min_tokens`, no token may end the text, unless it must end."""
    _forbid(logits, [(at, row.enders) for at, row in rows if row.delays_end and not row.must_end])


def add_bias(logits: Tensor, rows: Ruled) -> None:
    """`logit_bias`: added to the tokens it names."""
    biased = [(at, row.params.logit_bias) for at, row in rows if row.params.logit_bias]
    if biased:
        places = _places(logits, [(at, np.fromiter(bias, np.int64)) for at, bias in biased])
        values = np.concatenate([np.fromiter(bias.values(), np.float32) for _, bias in biased])
        logits[places] += _on(logits, values)


def penalise(logits: Tensor, rows: Ruled) -> None:
    """Repetition (prompt and output; divides or multiplies), then frequency and presence (output; subtract)."""
    past = [(at, row.history, row.params) for at, row in rows if row.history is not None]
    if not past:
        return
    places = _places(logits, [(at, history.ids) for at, history, _ in past])
    counts = _on(logits, np.concatenate([history.counts for _, history, _ in past]))
    each = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for _, _, p in past]
    spread = np.repeat(np.asarray(each, np.float32), [len(history.ids) for _, history, _ in past], axis=0)
    repetition, frequency, presence = _on(logits, np.ascontiguousarray(spread.T))
    values = logits[places]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[places] = values - frequency * counts - presence * (counts > 0)


def _forbid(logits: Tensor, tokens: Sequence[tuple[int, Ints]]) -> None:
    if tokens:
        logits[_places(logits, tokens)] = -torch.inf


def _places(logits: Tensor, tokens: Sequence[tuple[int, Ints]]) -> tuple[Tensor, Tensor]:
    """Row and column of every token, ready to index `logits`."""
    rows = np.repeat(np.asarray([at for at, _ in tokens], np.int64), [len(ids) for _, ids in tokens])
    return _on(logits, rows), _on(logits, np.concatenate([ids for _, ids in tokens]))


def _on(logits: Tensor, array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array).to(logits.device, non_blocking=True)
