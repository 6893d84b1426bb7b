"""Tokens that may not be drawn, as packed bits: a mask of a vocabulary is 32 times smaller than its logits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op


@op
def mask_tokens_(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """Of `logits` [S, vocab] float32, set to -inf what row i of `bits` does not allow in row `rows[i]` [n] (int64).

    `bits` [n, words] int32, at least vocab / 32 words: token t is bit t % 32 of word t // 32. Each row stands in `rows`
    once.
    """
    tokens = torch.arange(logits.shape[1], device=logits.device)
    allowed = (bits[:, tokens >> 5] >> (tokens & 31)) & 1  # [n, vocab]
    logits[rows] = logits[rows].masked_fill(allowed == 0, -torch.inf)


@mask_tokens_.cases(Tolerances(float32=0.0))
def _mask_cases(make: Inputs) -> Iterator[Case]:
    for label, rows, vocab, large in (("few", 3, 7, False), ("odd", 2, 1001, False), ("a vocabulary", 16, 49152, True)):
        words = -(-vocab // 32)
        bits = make.integers(2**31 - 1, rows, words).int() - make.integers(2, rows, words).int() * 2**30
        bits[0, : words // 2], bits[-1, words // 2 :] = 0, -1
        places = torch.arange(rows, device=bits.device).flip(0)
        yield Case(label, (make.normal(rows + 1, vocab, dtype=torch.float32), places, bits), large=large)
