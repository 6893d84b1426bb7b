"""Activations that become e4m3 or small integers and numbers again: a program takes some groups of one row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops.rounding import round_to_e4m3, round_to_integers
from . import NEEDS, takes
from .nearest import codes_at, nearest_e4m3, not_zero, range_of

SPILL_BOUND = 0  # bytes a thread: a group of 16384 inputs is 32 a thread with 16 warps
COLUMNS_PER_WARP = 1024  # 32 values a lane
LEAST_COLUMNS = 1024  # that a program takes of a row, in whole groups


@triton.jit
def _columns(size, GROUP: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    """The columns of the program's groups, [GROUPS, WIDTH], and which of them there are."""
    inner = tl.arange(0, WIDTH)[None, :]
    column = (tl.program_id(1) * GROUPS + tl.arange(0, GROUPS))[:, None] * GROUP + inner
    return column, (inner < GROUP) & (column < size)


@triton.jit
def _to_e4m3(
    out, x, scale, x_stride, size, STATIC: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column, inside = _columns(size, GROUP, GROUPS, WIDTH)
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if STATIC:
        scales = tl.load(scale)
    else:
        scales = not_zero(tl.div_rn(tl.max(tl.abs(value), 1, keep_dims=True), 448.0))
    found = nearest_e4m3(tl.div_rn(value, scales)) * scales
    tl.store(out + row * size + column, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _to_integers(
    out,
    x,
    x_stride,
    size,
    LOWEST: tl.constexpr,
    STEPS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column, inside = _columns(size, GROUP, GROUPS, WIDTH)
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale, zero = range_of(value, LOWEST, STEPS, SYMMETRIC)
    found = (codes_at(value, scale, zero, LOWEST, STEPS) - zero) * scale
    tl.store(out + row * size + column, found.to(out.dtype.element_ty), mask=inside)


@round_to_e4m3.impl("triton", when=lambda x, group, scale: takes(x) and x.stride(1) == 1, needs=NEEDS)
def round_to_e4m3_triton(x: Tensor, group: int, scale: Tensor | None) -> Tensor:
    """Rows may stand apart."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if scale is not None:
        group = LEAST_COLUMNS
    grid, cut = _cut(x, group)
    if out.numel():
        given = x if scale is None else scale
        _to_e4m3[grid](out, x, given, x.stride(0), x.shape[1], STATIC=scale is not None, **cut)
    return out


@round_to_integers.impl("triton", when=lambda x, bits, group, symmetric: takes(x) and x.stride(1) == 1, needs=NEEDS)
def round_to_integers_triton(x: Tensor, bits: int, group: int, symmetric: bool) -> Tensor:
    """Rows may stand apart."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid, cut = _cut(x, group)
    if out.numel():
        levels = {"LOWEST": -(2.0 ** (bits - 1)), "STEPS": 2.0**bits - 1, "SYMMETRIC": symmetric}
        _to_integers[grid](out, x, x.stride(0), x.shape[1], **levels, **cut)
    return out


def _cut(x: Tensor, group: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid, and what a program takes: whole groups of one row."""
    group = min(group, x.shape[1])
    width = triton.next_power_of_2(group)
    groups = max(1, LEAST_COLUMNS // width)
    grid = (len(x), triton.cdiv(triton.cdiv(x.shape[1], group), groups))
    num_warps = min(16, max(1, groups * width // COLUMNS_PER_WARP))
    return grid, {"GROUP": group, "GROUPS": groups, "WIDTH": width, "num_warps": num_warps}
