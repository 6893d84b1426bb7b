"""Gated activations: one program for a stretch of one row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops.activation import silu_mul
from . import NEEDS, takes

SPILL_BOUND = 0  # bytes a thread
BLOCK = 1024  # 8 values a thread with 4 warps: one 16-byte load of a half type


@triton.jit
def _silu_mul(out, x, row_stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    gate = tl.load(x + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * row_stride + size + column, mask=inside, other=0.0).to(tl.float32)
    activated = (gate / (1.0 + tl.exp(-gate))).to(x.dtype.element_ty).to(tl.float32)
    tl.store(out + row * size + column, (activated * up).to(out.dtype.element_ty), mask=inside)


@silu_mul.impl("triton", when=lambda x: takes(x) and x.stride(-1) == 1, needs=NEEDS + ", with contiguous rows")
def silu_mul_triton(x: Tensor) -> Tensor:
    """Rows may stand apart."""
    tokens, size = x.shape[0], x.shape[1] // 2
    out = torch.empty(tokens, size, dtype=x.dtype, device=x.device)
    _silu_mul[tokens, triton.cdiv(size, BLOCK)](out, x, x.stride(0), size, BLOCK=BLOCK)
    return out
