"""The delta of the adapters in two launches: shrink (x A^T into scratch memory), then expand (times B, onto y).

A program takes one piece of at most `tile` tokens of one adapter and reads from the table, on the device, where its A
and B lie and of which rank they are. The grids follow from shapes alone, unused pieces and ranks of 0 return at once:
a CUDA graph may hold both launches. What comes out of memory and is a multiple of 16 is said to be (`tl.multiple_of`):
otherwise the compiler would read A and B number by number.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops.lora import ALIGN, SMALL_TILE, DeltaRows, add_delta_
from . import NEEDS, takes
from .dot import dot, in_float32

# Tiles, reasoned and read off the compile test; not yet measured on a device. Ranks are mostly 8 to 64, so a wider tile
# than the least of a matrix unit (16) would compute zeros. Both products are bound by reading A and B: long stretches
# of K and N keep several loads under way.
RANK_TILE, K_TILE, N_TILE = 16, 128, 128
SMALL_WARPS, LARGE_WARPS = 4, 8  # a large tile on 4 warps spills 64 to 88 bytes a thread
SPILL_BOUND = 0  # bytes a thread, in half types; exact float32 is for checks and may spill

# With fewer programs than multiprocessors (132 on an H100) shrink splits K; a share of less than 512 is not worth it.
ENOUGH_PROGRAMS = 128
LEAST_SHARE = 512
MAX_SPLITS = 8


@triton.jit
def _shrink(
    scratch,
    x,
    arena,
    table,
    order,
    pieces,
    x_stride,
    k_size,
    share,
    tokens,
    max_rank,
    num_parts,
    TILE_T: tl.constexpr,
    TILE_R: tl.constexpr,
    TILE_K: tl.constexpr,
    START: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
):
    piece = pieces + tl.program_id(0) * 3
    part = tl.program_id(1)
    split = tl.program_id(2)
    start = tl.load(piece + 1)
    end = tl.load(piece + 2)
    if start == end:
        return
    entry = table + (tl.load(piece) * num_parts + part) * 3
    a_at = tl.multiple_of(tl.load(entry), START)
    rank = tl.load(entry + 2).to(tl.int32)
    at = start + tl.arange(0, TILE_T)
    live = (at < end)[:, None]
    token = tl.load(order + at, mask=at < end, other=0).to(tl.int64)[:, None]
    result = scratch + ((split * num_parts + part).to(tl.int64) * tokens + at[:, None]) * max_rank
    k_end = tl.minimum((split + 1) * share, k_size)
    for rank_from in range(0, rank, TILE_R):
        r = rank_from + tl.arange(0, TILE_R)
        acc = tl.zeros((TILE_T, TILE_R), tl.float32)
        for k_from in range(split * share, k_end, TILE_K):
            k = k_from + tl.arange(0, TILE_K)
            inside = k < k_end
            x_tile = tl.load(x + token * x_stride + k[None, :], mask=live & inside[None, :], other=0.0)
            a_mask = inside[:, None] & (r < rank)[None, :]
            a_tile = tl.load(arena + a_at + r[None, :] * k_size + k[:, None], mask=a_mask, other=0.0)
            acc = dot(x_tile, a_tile, acc, IN_FLOAT32)
        tl.store(result + r[None, :], acc, mask=live & (r < rank)[None, :])


@triton.jit
def _expand(
    y,
    scratch,
    arena,
    table,
    order,
    pieces,
    columns,
    y_stride,
    tokens,
    max_rank,
    num_parts,
    num_splits,
    TILE_T: tl.constexpr,
    TILE_R: tl.constexpr,
    TILE_N: tl.constexpr,
    START: tl.constexpr,
    COLUMNS: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
):
    piece = pieces + tl.program_id(0) * 3
    start = tl.load(piece + 1)
    end = tl.load(piece + 2)
    column = columns + tl.program_id(1) * 4
    part = tl.load(column)
    entry = table + (tl.load(piece) * num_parts + part) * 3
    b_at = tl.multiple_of(tl.load(entry + 1), START)
    rank = tl.load(entry + 2).to(tl.int32)
    if (start == end) | (rank == 0):
        return
    at = start + tl.arange(0, TILE_T)
    live = (at < end)[:, None]
    size = tl.multiple_of(tl.load(column + 1), COLUMNS)
    n = tl.multiple_of(tl.load(column + 2), TILE_N) + tl.arange(0, TILE_N)
    inside = (n < size)[None, :]
    acc = tl.zeros((TILE_T, TILE_N), tl.float32)
    for rank_from in range(0, rank, TILE_R):
        r = rank_from + tl.arange(0, TILE_R)
        shrunk = tl.zeros((TILE_T, TILE_R), tl.float32)
        for split in range(num_splits):
            source = scratch + ((split * num_parts + part).to(tl.int64) * tokens + at[:, None]) * max_rank
            shrunk += tl.load(source + r[None, :], mask=live & (r < rank)[None, :], other=0.0)
        b_tile = tl.load(arena + b_at + r[:, None] * size + n[None, :], mask=(r < rank)[:, None] & inside, other=0.0)
        acc = dot(shrunk, b_tile, acc, IN_FLOAT32)
    token = tl.load(order + at, mask=at < end, other=0).to(tl.int64)[:, None]
    target = y + token * y_stride + tl.multiple_of(tl.load(column + 3), COLUMNS) + n[None, :]
    total = tl.load(target, mask=live & inside, other=0.0).to(tl.float32) + acc
    tl.store(target, total.to(y.dtype.element_ty), mask=live & inside)


@add_delta_.impl(
    "triton",
    when=lambda y, x, arena, table, rows, parts: takes(y) and takes(arena) and y.stride(1) == x.stride(1) == 1,
    needs=NEEDS + ", with contiguous rows",
)
def add_delta_triton_(
    y: Tensor, x: Tensor, arena: Tensor, table: Tensor, rows: DeltaRows, parts: tuple[tuple[int, int], ...]
) -> None:
    """In half types x A^T is rounded once before it meets B, as PEFT does."""
    tokens, k_size = x.shape
    num_pieces, num_parts = len(rows.pieces), len(parts)
    splits = _num_splits(num_pieces * num_parts, k_size)
    share = triton.cdiv(triton.cdiv(k_size, splits), K_TILE) * K_TILE
    scratch = torch.empty(splits, num_parts, tokens, rows.max_rank, dtype=torch.float32, device=x.device)
    placed = (rows.order, rows.pieces)
    tiles = {
        "TILE_T": rows.tile,
        "TILE_R": RANK_TILE,
        "num_warps": SMALL_WARPS if rows.tile == SMALL_TILE else LARGE_WARPS,
    }
    _shrink[num_pieces, num_parts, splits](
        scratch,
        x,
        arena,
        table,
        *placed,
        x.stride(0),
        k_size,
        share,
        tokens,
        rows.max_rank,
        num_parts,
        **tiles,
        TILE_K=K_TILE,
        START=ALIGN,
        IN_FLOAT32=in_float32(x.dtype, arena.dtype),
    )
    columns = _columns(parts, x.device)
    _expand[num_pieces, len(columns)](
        y,
        scratch,
        arena,
        table,
        *placed,
        columns,
        y.stride(0),
        tokens,
        rows.max_rank,
        num_parts,
        splits,
        **tiles,
        TILE_N=N_TILE,
        START=ALIGN,
        COLUMNS=ALIGN if all(at % ALIGN == 0 for part in parts for at in part) else 1,
        IN_FLOAT32=in_float32(arena.dtype),
    )


@functools.cache
def _columns(parts: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """[num_tiles, 4] int32: part, its size, first column within it, and where the part starts in y."""
    tiles = [(i, size, at, start) for i, (start, size) in enumerate(parts) for at in range(0, size, N_TILE)]
    return torch.tensor(tiles, dtype=torch.int32, device=device)


def _num_splits(programs: int, k_size: int) -> int:
    wanted = min(ENOUGH_PROGRAMS // max(programs, 1), k_size // LEAST_SHARE, MAX_SPLITS)
    return max(1, wanted)
