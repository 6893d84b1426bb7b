"""The norms: one program a row, the whole row in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops.norm import add_rms_norm_, rms_norm
from . import NEEDS, takes

SPILL_BOUND = 0  # bytes a thread: 4096 columns are 32 a thread with 4 warps
COLUMNS_PER_WARP = 1024  # 32 values a lane


@triton.jit
def _normed(x, weight_ptr, column, inside, size, eps, dtype: tl.constexpr):
    scale = tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    return (x * scale).to(dtype).to(tl.float32) * weight


@triton.jit
def _rms_norm(out, x, weight, num_inner, outer_stride, inner_stride, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    source = x + row // num_inner * outer_stride + row % num_inner * inner_stride + column
    value = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    normed = _normed(value, weight, column, inside, size, eps, x.dtype.element_ty)
    tl.store(out + row * size + column, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_rms_norm(out, x, residual, weight, x_stride, residual_stride, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    target = residual + row * residual_stride + column
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    rounded = value.to(residual.dtype.element_ty)
    tl.store(target, rounded, mask=inside)
    normed = _normed(rounded.to(tl.float32), weight, column, inside, size, eps, x.dtype.element_ty)
    tl.store(out + row * size + column, normed.to(out.dtype.element_ty), mask=inside)


@rms_norm.impl("triton", when=lambda x, weight, eps: takes(x), needs=NEEDS)
def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rows of any two leading axes, so that the heads of a fused projection need no copy."""
    size = x.shape[-1]
    rows = x if x.dim() == 3 and x.stride(2) == 1 else x.reshape(1, -1, size)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid = (rows.shape[0] * rows.shape[1],)
    block = triton.next_power_of_2(size)
    _rms_norm[grid](
        out, rows, weight, rows.shape[1], *rows.stride()[:2], size, eps, BLOCK=block, num_warps=_num_warps(block)
    )
    return out


@add_rms_norm_.impl("triton", when=lambda x, residual, weight, eps: takes(x), needs=NEEDS)
def add_rms_norm_triton_(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The sum is rounded and stored, then normed from registers."""
    tokens, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(size)
    _add_rms_norm[(tokens,)](
        out,
        x,
        residual,
        weight,
        x.stride(0),
        residual.stride(0),
        size,
        eps,
        BLOCK=block,
        num_warps=_num_warps(block),
    )
    return out


def _num_warps(block: int) -> int:
    return min(16, max(1, block // COLUMNS_PER_WARP))
