"""Tokens from logits: the most likely of each row, and draws from truncated distributions.

Where noise comes from and what a request asks is not known here: a draw is told its uniform number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op

WIDTH = 256  # tokens sorted first: a top_p seldom needs more; 64 rows of 49152 take 26 ms, sorted whole 500 ms


@dataclass(frozen=True, slots=True)
class Greatest:
    """The highest value of each row, NaN where there is one, and its first place."""

    values: Tensor  # [rows]
    places: Tensor  # [rows] int64


@op
def greatest(x: Tensor) -> Greatest:
    """Of `x` [rows, n] float32."""
    return Greatest(*x.max(dim=-1))


@op
def draw_tokens(logits: Tensor, rows: Tensor, table: Tensor) -> Tensor:
    """For each of `rows` [n] (int64) of `logits` [S, vocab] float32 a token [n]: by temperature, min_p, top_k, top_p.

    `table` [n, 5] float32: temperature, top_k (vocab: all), top_p, min_p, and a uniform number in [0, 1], which is
    taken through the inverse of the truncated distribution: in the order of the vocabulary where neither top_k nor
    top_p cuts, else by rank. min_p is relative to the likeliest token, top_p to what min_p and top_k left. Every row
    has a finite highest logit.
    """
    vocab = logits.shape[1]
    temperature, top_k, top_p, min_p, uniform = table[:, :, None].unbind(1)  # [n, 1] each
    probs = torch.softmax(logits[rows] / temperature, dim=-1)
    cut = _Cut(top_k, top_p, min_p)
    ranked = ((top_k < vocab) | (top_p < 1.0))[:, 0].nonzero()[:, 0]
    if len(ranked) == len(rows):
        return _from_ranked(probs, cut, uniform)
    tokens = _from_all(probs, min_p, uniform)
    if len(ranked):
        tokens[ranked] = _from_ranked(probs[ranked], cut.only(ranked), uniform[ranked])
    return tokens


@dataclass(frozen=True, slots=True)
class _Cut:
    """How the distribution of each row is truncated: columns [n, 1]."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def only(self, rows: Tensor) -> _Cut:
        return _Cut(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def _from_all(probs: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    """Tokens in the order of the vocabulary; no sort is needed."""
    if bool((min_p > 0).any()):
        probs = probs.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), 0.0)
    return _invert(probs.cumsum(-1), uniform)[:, 0]


def _from_ranked(probs: Tensor, cut: _Cut, uniform: Tensor) -> Tensor:
    """Tokens by rank. Rows that do not end among the WIDTH most likely tokens are sorted whole."""
    vocab = probs.shape[1]
    limits = cut.top_k[cut.top_k < vocab]
    width = min(vocab, max(WIDTH, int(limits.max()) if len(limits) else 0))
    tokens, ended = _among_best(probs, cut, uniform, width)
    if width < vocab and not bool(ended.all()):
        rest = (~ended).nonzero()[:, 0]
        tokens[rest], _ = _among_best(probs[rest], cut.only(rest), uniform[rest], vocab)
    return tokens


def _among_best(probs: Tensor, cut: _Cut, uniform: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The drawn tokens [n], and whether the `width` most likely tokens were enough to draw them [n]."""
    best, ids = probs.topk(width, dim=-1)  # [n, width]
    rank = torch.arange(width, device=probs.device)
    kept = (rank < cut.top_k) & (best >= cut.min_p * best[:, :1])  # a prefix of each row
    mass = best.masked_fill(~kept, 0.0).cumsum(-1)
    whole = ~kept[:, -1:] | (cut.top_k <= width)  # the prefix ends here, so its mass is known
    total = torch.where(whole, mass[:, -1:], 1.0)
    limit = cut.top_p * total
    nucleus = kept & (mass - best < limit)
    ended = whole | ((cut.min_p == 0) & (mass[:, -1:] >= limit))
    drawn = _invert(best.masked_fill(~nucleus, 0.0).cumsum(-1), uniform)
    return ids.gather(-1, drawn)[:, 0], ended[:, 0]


def _invert(mass: Tensor, uniform: Tensor) -> Tensor:
    """The first place [n, 1] whose cumulative mass exceeds the share `uniform` of all of it."""
    total = mass[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))  # rounding must not reach past the last possible token
    return torch.searchsorted(mass, torch.minimum(uniform * total, below), right=True)


@greatest.cases(Tolerances(float32=0.0))
def _greatest_cases(make: Inputs) -> Iterator[Case]:
    for label, rows, count, large in (("few", 3, 7, False), ("odd", 2, 1001, False), ("a vocabulary", 16, 49152, True)):
        yield Case(label, (make.normal(rows, count, dtype=torch.float32),), large=large)
    yield Case("the first of equal ones", (make.integers(9, 5, 300).float(),))


@draw_tokens.cases(Tolerances())
def _draw_cases(make: Inputs) -> Iterator[Case]:
    asked = ((1.0, 0, 1.0, 0.0), (1.7, 0, 0.8, 0.0), (1.0, 7, 1.0, 0.0), (0.6, 0, 1.0, 0.02), (1.0, 40, 0.5, 0.01))
    flat = (1.0, 0, 0.95, 0.0)
    for label, vocab, scale, rows, large in (
        ("all kinds", 400, 3.0, asked, False),
        ("a flat distribution", 3001, 0.1, (flat, (1.0, 900, 0.9, 0.0), (1.0, 0, 0.9, 1e-3)), False),
        ("top_p of a vocabulary", 49152, 3.0, ((0.8, 0, 0.9, 0.0),), True),
        ("top_k of a vocabulary", 49152, 3.0, ((0.8, 40, 0.95, 0.0),), True),
        ("a whole vocabulary, sixteen times", 49152, 3.0, ((1.0, 0, 1.0, 0.0),) * 16, True),
    ):
        table = [(t, k or vocab, p, m, (at + 0.5) / len(rows)) for at, (t, k, p, m) in enumerate(rows)]
        logits = make.normal(len(rows) + 1, vocab, scale=scale, dtype=torch.float32)
        chosen = make.integers(len(logits), len(rows))
        yield Case(label, (logits, chosen, make.put(table, torch.float32)), large=large)
