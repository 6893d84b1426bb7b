"""Rotary position embedding, in place. How frequencies are scaled is the model's affair: it brings the tables."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op


@op
def rotate_(q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> None:
    """Turn the first R of D dimensions of `q` [T, Hq, D] and `k` [T, Hk, D] by the angles of `positions` [T] int64.

    `cos` and `sin` are [P, R / 2] float32. Dimension i turns with i + R / 2, or with its neighbour when interleaved.
    Computed in float32, rounded once.
    """
    c = cos.index_select(0, positions).unsqueeze(1)  # [T, 1, R / 2]
    s = sin.index_select(0, positions).unsqueeze(1)
    half = cos.shape[1]
    for x in (q, k):
        turned = x[..., : 2 * half]
        if interleaved:
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = turned[..., :half], turned[..., half:]
        a, b = first.float(), second.float()
        a, b = a * c - b * s, b * c + a * s
        first.copy_(a)
        second.copy_(b)


@rotate_.cases(Tolerances())
def _cases(make: Inputs) -> Iterator[Case]:
    for label, tokens, heads, kv_heads, dim, rotary, interleaved, large in (
        ("grouped heads", 3, 4, 2, 16, 16, False, False),
        ("partial", 2, 2, 1, 24, 8, False, False),
        ("interleaved", 2, 3, 3, 16, 12, True, False),
        ("Llama 8B", 64, 32, 8, 128, 128, False, True),
    ):
        angles = make.normal(50, rotary // 2, scale=3.0, dtype=torch.float32)
        q, k = make.normal(tokens, heads, dim), make.normal(tokens, kv_heads, dim)
        args = (q, k, make.integers(50, tokens), angles.cos(), angles.sin())
        yield Case(label, args, {"interleaved": interleaved}, large=large)
