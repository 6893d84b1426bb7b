"""One token from a distribution: temperature, truncation, and noise that depends on nothing but the request.

The noise is one uniform number for each position, a pure function of (seed, choice, position) by Philox (Salmon et
al., "Parallel random numbers: as easy as 1, 2, 3", 2011), taken through the inverse of the truncated distribution. So a
seeded request draws the same tokens whatever shares its batch, and after a preemption too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..kernels.ops.sampling import draw_tokens
from .params import SamplingParams

NOISE_BLOCK = 64  # uniforms made at a time; making one alone costs 20 us


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


def draw(logits: Tensor, rows: Sequence[int], asked: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    """A token for each of `rows` of `logits` [S, vocab]: temperature, min_p, top_k, top_p of what is left (vLLM)."""
    vocab = logits.shape[1]
    told = zip(asked, uniforms, strict=True)
    table = [(p.temperature, p.top_k if 0 < p.top_k < vocab else vocab, p.top_p, p.min_p, u) for p, u in told]
    where = torch.tensor(rows).to(logits.device)
    return draw_tokens(logits, where, torch.tensor(table, dtype=torch.float32).to(logits.device))
