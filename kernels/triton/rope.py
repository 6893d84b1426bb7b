"""Rotary embedding: one program a token, all heads of q and of k with the same angles."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..ops.rope import rotate_
from . import NEEDS, takes

SPILL_BOUND = 0  # bytes a thread: 32 heads of 64 pairs are 2 x 16 values a thread with 4 warps


@triton.jit
def _turn(x, head_stride, num_heads, c, s, pair, half, INTERLEAVED: tl.constexpr, HEADS: tl.constexpr):
    head = tl.arange(0, HEADS)[:, None]
    inside = (head < num_heads) & (pair[None, :] < half)
    if INTERLEAVED:
        first = x + head * head_stride + 2 * pair[None, :]
        second = first + 1
    else:
        first = x + head * head_stride + pair[None, :]
        second = first + half
    a = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(second, mask=inside, other=0.0).to(tl.float32)
    tl.store(first, (a * c - b * s).to(x.dtype.element_ty), mask=inside)
    tl.store(second, (b * c + a * s).to(x.dtype.element_ty), mask=inside)


@triton.jit
def _rotate(
    q,
    k,
    positions,
    cos,
    sin,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    num_q_heads,
    num_k_heads,
    half,
    INTERLEAVED: tl.constexpr,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, PAIRS)
    angle = tl.load(positions + token) * half + pair
    c = tl.load(cos + angle, mask=pair < half, other=0.0)[None, :]
    s = tl.load(sin + angle, mask=pair < half, other=0.0)[None, :]
    _turn(q + token * q_token_stride, q_head_stride, num_q_heads, c, s, pair, half, INTERLEAVED, Q_HEADS)
    _turn(k + token * k_token_stride, k_head_stride, num_k_heads, c, s, pair, half, INTERLEAVED, K_HEADS)


@rotate_.impl(
    "triton",
    when=lambda q, k, positions, cos, sin, *, interleaved=False: takes(q) and q.stride(2) == k.stride(2) == 1,
    needs=NEEDS + ", with contiguous heads",
)
def rotate_triton_(
    q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False
) -> None:
    """Tokens and heads may stand apart, as in a fused projection."""
    half = cos.shape[1]
    _rotate[(q.shape[0],)](
        q,
        k,
        positions,
        cos.contiguous(),
        sin.contiguous(),
        *q.stride()[:2],
        *k.stride()[:2],
        q.shape[1],
        k.shape[1],
        half,
        INTERLEAVED=interleaved,
        Q_HEADS=triton.next_power_of_2(q.shape[1]),
        K_HEADS=triton.next_power_of_2(k.shape[1]),
        PAIRS=triton.next_power_of_2(half),
    )
