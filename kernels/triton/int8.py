"""Integer products on the matrix unit, W x^T as in grouped.py, and the rows that are quantised for them.

Integer sums are exact, so nobody can tell how K was cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops.int8 import Int8Rows, Int8Weight, matmul_int8, quantize_rows
from . import DTYPES, INTERPRETED, NEEDS, takes
from .nearest import codes_at, range_of


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program computes, from how many inputs at a time, and with how many warps and buffers."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


# Reasoned and read off the compile test; not yet measured on a device. Few rows are bound by reading the weight, 128
# bytes of an output at once.
FEW, SOME, MANY = Tile(16, 64, 128, 4, 4), Tile(64, 128, 128, 8, 3), Tile(128, 128, 128, 8, 3)
SPILL_BOUND = 0  # bytes a thread

# Fewer programs than twice the multiprocessors (132 on an H100) leave memory idle; a share of less than 512 inputs
# costs more in joining than it saves.
ENOUGH_PROGRAMS = 256
LEAST_SHARE = 512
MAX_SHARES = 8
MOST_INPUTS = 65536  # as long as 255 * 128 * K fits 32 bits

JOIN_BLOCK = 1024
COLUMNS_PER_WARP = 1024  # 32 values a lane


@triton.jit
def _finished(sums, x_zeros, x_scales, w_sums, w_scales, t, n, live, inside, HAS_ZEROS: tl.constexpr):
    """What the integer sums at (t, n) mean; t and n of one shape when broadcast."""
    if HAS_ZEROS:
        sums -= tl.load(x_zeros + t, mask=live, other=0) * tl.load(w_sums + n, mask=inside, other=0)
    scaled = sums.to(tl.float32) * tl.load(x_scales + t, mask=live, other=0.0)
    return scaled * tl.load(w_scales + n, mask=inside, other=0.0)


@triton.jit
def _multiply(
    out,
    codes,
    weight,
    x_zeros,
    x_scales,
    w_sums,
    w_scales,
    codes_stride,
    weight_stride,
    tokens,
    n_size,
    k_size,
    share,
    HAS_ZEROS: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE_T: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    t = tl.program_id(1) * TILE_T + tl.arange(0, TILE_T)
    first = tl.program_id(2) * share
    inside, live = (n < n_size)[:, None], (t < tokens)[None, :]
    w_row = weight + n.to(tl.int64)[:, None] * weight_stride
    x_row = codes + t.to(tl.int64)[None, :] * codes_stride
    sums = tl.zeros((TILE_N, TILE_T), tl.int32)
    for k_from in tl.range(first, tl.minimum(first + share, k_size), TILE_K, num_stages=STAGES):
        k = k_from + tl.arange(0, TILE_K)
        held = k < k_size
        w_tile = tl.load(w_row + k[None, :], mask=inside & held[None, :], other=0)
        x_tile = tl.load(x_row + k[:, None], mask=held[:, None] & live, other=0)
        sums = tl.dot(w_tile, x_tile, sums, out_dtype=tl.int32)
    target = out + t.to(tl.int64)[None, :] * n_size + n[:, None]
    if SPLIT:
        target += tl.program_id(2).to(tl.int64) * tokens * n_size
        tl.store(target, sums, mask=inside & live)
    else:
        found = _finished(sums, x_zeros, x_scales, w_sums, w_scales, t[None, :], n[:, None], live, inside, HAS_ZEROS)
        tl.store(target, found.to(out.dtype.element_ty), mask=inside & live)


@triton.jit
def _join(
    out,
    shares,
    x_zeros,
    x_scales,
    w_sums,
    w_scales,
    n_size,
    size,
    num_shares,
    HAS_ZEROS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    sums = tl.zeros((BLOCK,), tl.int32)
    source = shares + at
    for _ in range(num_shares):
        sums += tl.load(source, mask=inside, other=0)
        source += size
    found = _finished(sums, x_zeros, x_scales, w_sums, w_scales, at // n_size, at % n_size, inside, inside, HAS_ZEROS)
    tl.store(out + at, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _quantize(
    codes,
    scales,
    zeros,
    x,
    given,
    x_stride,
    size,
    GIVEN_ZERO: tl.constexpr,
    STATIC: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)[None, :]
    value = tl.load(x + row * x_stride + column, mask=column < size, other=0.0).to(tl.float32)
    if STATIC:
        scale = tl.load(given + tl.zeros((1, 1), tl.int32))
        zero = tl.full((1, 1), GIVEN_ZERO, tl.float32)
    else:
        scale, zero = range_of(value, -128.0, 255.0, SYMMETRIC)
    found = codes_at(value, scale, zero, -128.0, 255.0)
    tl.store(codes + row * size + column, found.to(tl.int8), mask=column < size)
    one = tl.zeros((1, 1), tl.int32)
    tl.store(scales + row + one, scale)
    if HAS_ZEROS:
        tl.store(zeros + row + one, zero.to(tl.int32))


def _multiplies(x: Int8Rows, weight: Int8Weight, dtype: torch.dtype) -> bool:
    here = (x.codes.is_cuda or INTERPRETED) and dtype in DTYPES and weight.layout == "rows"
    return here and x.codes.stride(1) == weight.data.stride(1) == 1 and weight.k <= MOST_INPUTS


@matmul_int8.impl("triton", when=_multiplies, needs=f"rows on a CUDA or HIP device, of at most {MOST_INPUTS} inputs")
def matmul_int8_triton(x: Int8Rows, weight: Int8Weight, dtype: torch.dtype) -> Tensor:
    """One launch; a second one joins the shares where programs would be few."""
    tokens, k_size = x.codes.shape
    out = torch.empty(tokens, weight.n, dtype=dtype, device=x.codes.device)
    if not tokens:
        return out
    tile = next((tile for tile in (FEW, SOME) if tokens <= tile.rows), MANY)
    grid = (triton.cdiv(weight.n, tile.outputs), triton.cdiv(tokens, tile.rows))
    share, num_shares = _shares(grid[0] * grid[1], k_size, tile)
    split = num_shares > 1
    shares = torch.empty(num_shares, tokens, weight.n, dtype=torch.int32, device=out.device) if split else out
    zeros = x.scales if x.zeros is None else x.zeros
    numbers = (zeros, x.scales.contiguous(), weight.sums, weight.scales)
    _multiply[(*grid, num_shares)](
        shares,
        x.codes,
        weight.data,
        *numbers,
        x.codes.stride(0),
        weight.data.stride(0),
        tokens,
        weight.n,
        k_size,
        share,
        HAS_ZEROS=x.zeros is not None,
        SPLIT=split,
        TILE_T=tile.rows,
        TILE_N=tile.outputs,
        TILE_K=tile.inputs,
        STAGES=tile.stages,
        num_warps=tile.warps,
    )
    if split:
        _join[(triton.cdiv(out.numel(), JOIN_BLOCK),)](
            out, shares, *numbers, weight.n, out.numel(), num_shares, HAS_ZEROS=x.zeros is not None, BLOCK=JOIN_BLOCK
        )
    return out


def _shares(programs: int, k_size: int, tile: Tile) -> tuple[int, int]:
    """Inputs of a share, in whole tiles, and how many shares there are."""
    wanted = max(1, min(ENOUGH_PROGRAMS // programs, k_size // LEAST_SHARE, MAX_SHARES))
    share = triton.cdiv(triton.cdiv(k_size, wanted), tile.inputs) * tile.inputs
    return share, triton.cdiv(k_size, share)


@quantize_rows.impl(
    "triton",
    when=lambda x, scale, zero, symmetric: takes(x) and x.stride(1) == 1,
    needs=NEEDS + ", with contiguous rows",
)
def quantize_rows_triton(x: Tensor, scale: Tensor | None, zero: int, symmetric: bool) -> Int8Rows:
    """One program a row, the whole row in registers."""
    tokens, size = x.shape
    static = scale is not None
    codes = torch.empty(tokens, size, dtype=torch.int8, device=x.device)
    scales = torch.empty(tokens, dtype=torch.float32, device=x.device)
    has_zeros = zero != 0 if static else not symmetric
    zeros = torch.empty(tokens, dtype=torch.int32, device=x.device) if has_zeros else None
    width = triton.next_power_of_2(size)
    if tokens:
        _quantize[(tokens,)](
            codes,
            scales,
            codes if zeros is None else zeros,
            x,
            x if scale is None else scale,
            x.stride(0),
            size,
            GIVEN_ZERO=float(zero),
            STATIC=static,
            SYMMETRIC=symmetric,
            HAS_ZEROS=has_zeros,
            WIDTH=width,
            num_warps=min(16, max(1, width // COLUMNS_PER_WARP)),
        )
    return Int8Rows(codes, scales, zeros)
