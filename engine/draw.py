"""One token from a distribution: temperature, truncation, and noise that depends on nothing but the request.

The noise is one uniform number for each position, a pure function of (seed, choice, position) by Philox (Salmon et
al., "Parallel random numbers: as easy as 1, 2, 3", 2011), taken through the inverse of the truncated distribution. So a
seeded request draws the same tokens whatever shares its batch, and after a preemption too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .params import SamplingParams

NOISE_BLOCK = 64  # uniforms made at a time; making one alone costs 20 us
WIDTH = 256  # tokens sorted first: a top_p seldom needs more; 64 rows of 49152 take 26 ms, sorted whole 500 ms


class Noise:
    """The uniform numbers in [0, 1) of one choice of a request."""

    def __init__(self, seed: int, index: int) -> None:
        self._key = np.asarray([seed % 2**64, index], np.uint64)
        self._block_at = -1
        self._block: list[float] = []

    def at(self, position: int) -> float:
        """The number that draws the token at `position` of the sequence."""
        block_at, within = divmod(position, NOISE_BLOCK)
        if block_at != self._block_at:
            philox = np.random.Philox(key=self._key, counter=block_at * NOISE_BLOCK)
            self._block = np.random.Generator(philox).random(NOISE_BLOCK).tolist()
            self._block_at = block_at
        return self._block[within]


@dataclass(frozen=True, slots=True)
class _Cut:
    """How the distribution of each row is truncated: columns [n, 1]."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def only(self, rows: Tensor) -> _Cut:
        return _Cut(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def draw(logits: Tensor, asked: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    """A token for each row of `logits` [n, vocab]: temperature, min_p, top_k, then top_p of what is left (vLLM)."""
    vocab = logits.shape[1]
    columns = [(p.temperature, p.top_k if p.top_k > 0 else vocab, p.top_p, p.min_p) for p in asked]
    table = torch.tensor(columns, dtype=torch.float32).to(logits.device)[:, :, None]  # [n, 4, 1]
    temperature, top_k, top_p, min_p = table.unbind(1)
    uniform = torch.tensor(uniforms, dtype=torch.float32).to(logits.device)[:, None]  # [n, 1]
    probs = torch.softmax(logits / temperature, dim=-1)
    cut = _Cut(top_k, top_p, min_p)
    ranked = [at for at, p in enumerate(asked) if 0 < p.top_k < vocab or p.top_p < 1.0]
    if not ranked:
        return _from_all(probs, min_p, uniform)
    if len(ranked) == len(asked):
        return _from_ranked(probs, cut, uniform)
    chosen = torch.tensor(ranked, device=logits.device)
    tokens = _from_all(probs, min_p, uniform)
    tokens[chosen] = _from_ranked(probs[chosen], cut.only(chosen), uniform[chosen])
    return tokens


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
