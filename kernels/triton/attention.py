"""Paged attention: one kernel for prefill, chunks and decode.

A program takes one tile of one row's queries, with all query heads that share one head of keys, and walks over the keys
with a running softmax. Tiles are dealt out without asking the host: row r owns tiles query_start[r] / Q + r onwards,
which is at least as many as it needs, and a program finds its row by bisection. When rows are few, several programs
share a tile's keys and a second kernel joins what they found.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops.attention import paged_attention
from . import NEEDS, takes
from .dot import dot, in_float32

# Tiles, reasoned from registers and read off the compile test; not yet measured on a device. Decode fills the least
# that a matrix unit takes (16 rows); prompts reuse each key 64 times. Exact float32 products run on the plain units,
# hold their operands in registers and get half of everything.
DECODE_TILE, PROMPT_TILE = 16, 64
KEYS_TILE, WIDE_KEYS_TILE, WIDE_HEAD = 64, 32, 128  # heads over 128 take fewer keys at once
DECODE_WARPS, PROMPT_WARPS = 4, 8  # a prompt tile on 4 warps spills 80 to 168 bytes a thread on sm_80
SPILL_BOUND = 0  # bytes a thread, in half types; exact float32 is for checks and may spill

# Splitting pays while programs are fewer than the multiprocessors (132 on an H100, 304 on an MI300X), and a share of
# less than 256 keys costs more in joining than it saves in walking.
ENOUGH_PROGRAMS = 256
LEAST_SHARE = 256
MAX_SPLITS = 64


@triton.jit
def _row_of(query_start, num_rows, tile, TILE_Q: tl.constexpr):
    """The last row whose first tile is not after `tile`."""
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // TILE_Q + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _share(oldest, newest, window, split, num_splits, TILE_N: tl.constexpr, WINDOWED: tl.constexpr):
    """The stretch of keys of one split, in whole tiles: its part of what queries at oldest .. newest - 1 see."""
    begin = 0
    if WINDOWED:
        begin = tl.maximum(0, oldest - window + 1) // TILE_N * TILE_N
    size = tl.cdiv(tl.cdiv(newest - begin, TILE_N), num_splits) * TILE_N
    begin += split * size
    return begin, tl.minimum(newest, begin + size)


@triton.jit
def _scored(s, scale, softcap, CAPPED: tl.constexpr):
    """Scores in units of log2, so that exp2 makes the softmax."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    s = s * scale
    if CAPPED:
        s = softcap * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * s / softcap)))
    return s * LOG2_E


@triton.jit
def _weighed(s, top):
    """The scores' weights below the new maximum, what the old weights shrink to, and the maximum of each query."""
    new_top = tl.maximum(top, tl.max(s, 1))
    pivot = tl.where(new_top == float("-inf"), 0.0, new_top)  # a query may have seen nothing yet
    return tl.exp2(s - pivot[:, None]), tl.exp2(top - pivot), new_top


@triton.jit
def _attend(
    out,
    shares,
    stats,
    q,
    k_cache,
    v_cache,
    query_start,
    seq_lens,
    block_table,
    num_rows,
    num_splits,
    q_token_stride,
    q_head_stride,
    num_heads,
    k_block_stride,
    k_slot_stride,
    k_head_stride,
    v_block_stride,
    v_slot_stride,
    v_head_stride,
    table_stride,
    scale,
    softcap,
    window,
    DIM: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_Q: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_D: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SPLIT: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = _row_of(query_start, num_rows, tile, TILE_Q)
    start = tl.load(query_start + row)
    length = tl.load(query_start + row + 1) - start
    first = (tile - start // TILE_Q - row) * TILE_Q
    if first >= length:
        return
    before = tl.load(seq_lens + row) - length  # keys ahead of the row's first query

    m = tl.arange(0, TILE_M)
    d = tl.arange(0, TILE_D)
    query = first + m // SHARED
    head = kv_head * SHARED + m % SHARED
    token = (start + query).to(tl.int64)
    live = (m < TILE_Q * SHARED) & (query < length)
    q_at = token[:, None] * q_token_stride + head[:, None] * q_head_stride + d[None, :]
    q_tile = tl.load(q + q_at, mask=live[:, None] & (d[None, :] < DIM), other=0.0)

    newest = before + tl.minimum(first + TILE_Q, length)
    begin, end = _share(before + first, newest, window, split, num_splits, TILE_N, WINDOWED)
    top = tl.full((TILE_M,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_M,), tl.float32)
    acc = tl.zeros((TILE_M, TILE_D), tl.float32)
    for key_from in range(begin, end, TILE_N):
        key = key_from + tl.arange(0, TILE_N)
        held = key < end
        block = tl.load(block_table + row * table_stride + key // BLOCK_SIZE, mask=held, other=0).to(tl.int64)
        slot = key % BLOCK_SIZE
        k_at = block * k_block_stride + slot * k_slot_stride + kv_head * k_head_stride
        v_at = block * v_block_stride + slot * v_slot_stride + kv_head * v_head_stride
        inside = held[:, None] & (d[None, :] < DIM)
        k_tile = tl.load(k_cache + k_at[:, None] + d[None, :], mask=inside, other=0.0)
        v_tile = tl.load(v_cache + v_at[:, None] + d[None, :], mask=inside, other=0.0)
        s = dot(q_tile, tl.trans(k_tile), tl.zeros((TILE_M, TILE_N), tl.float32), IN_FLOAT32)
        age = (before + query)[:, None] - key[None, :]
        seen = held[None, :] & (age >= 0)
        if WINDOWED:
            seen = seen & (age < window)
        s = tl.where(seen, _scored(s, scale, softcap, CAPPED), float("-inf"))
        p, shrink, top = _weighed(s, top)
        total = total * shrink + tl.sum(p, 1)
        acc = dot(p, v_tile, acc * shrink[:, None], IN_FLOAT32)

    line = token * num_heads + head  # which of the T x Hq results
    written = live[:, None] & (d[None, :] < DIM)
    if SPLIT:
        line = line * num_splits + split
        tl.store(shares + line[:, None] * DIM + d[None, :], acc, mask=written)
        tl.store(stats + 2 * line, top, mask=live)
        tl.store(stats + 2 * line + 1, total, mask=live)
    else:
        result = acc / tl.where(live, total, 1.0)[:, None]
        tl.store(out + line[:, None] * DIM + d[None, :], result.to(out.dtype.element_ty), mask=written)


@triton.jit
def _join(out, shares, stats, num_splits, DIM: tl.constexpr, SPLITS: tl.constexpr, TILE_D: tl.constexpr):
    """One result from the shares of its keys, each weighed by its part of the softmax's sum."""
    line = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    d = tl.arange(0, TILE_D)
    there = split < num_splits
    top = tl.load(stats + 2 * (line * num_splits + split), mask=there, other=float("-inf"))
    total = tl.load(stats + 2 * (line * num_splits + split) + 1, mask=there, other=0.0)
    weight = tl.exp2(top - tl.max(top, 0))
    share_at = (line * num_splits + split)[:, None] * DIM + d[None, :]
    share = tl.load(shares + share_at, mask=there[:, None] & (d[None, :] < DIM), other=0.0)
    result = tl.sum(share * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + line * DIM + d, result.to(out.dtype.element_ty), mask=d < DIM)


def _readable(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    *,
    max_query: int,
    max_seq: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> bool:
    return takes(q) and takes(k_cache) and q.stride(2) == k_cache.stride(3) == v_cache.stride(3) == 1


@paged_attention.impl("triton", when=_readable, needs=NEEDS + ", with contiguous heads")
def paged_attention_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    *,
    max_query: int,
    max_seq: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """The grid follows from shapes, `max_query` and `max_seq`: a CUDA graph may hold it."""
    tokens, heads, dim = q.shape
    num_rows, kv_heads = len(seq_lens), k_cache.shape[2]
    shared = heads // kv_heads
    exact = in_float32(q.dtype, k_cache.dtype)
    tile_m = _query_tile(max_query * shared, shared, exact)
    tile_q = tile_m // shared
    tile_n = (KEYS_TILE if dim <= WIDE_HEAD else WIDE_KEYS_TILE) // (2 if exact else 1)
    tile_d = max(16, triton.next_power_of_2(dim))
    num_tiles = tokens // tile_q + num_rows
    num_splits = _num_splits(num_tiles * kv_heads, max_seq if window is None else min(max_seq, window + max_query))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    held = (tokens * heads, num_splits) if num_splits > 1 else (0, 0)
    shares = torch.empty(*held, dim, dtype=torch.float32, device=q.device)
    stats = torch.empty(*held, 2, dtype=torch.float32, device=q.device)
    _attend[num_tiles, kv_heads, num_splits](
        out,
        shares,
        stats,
        q,
        k_cache,
        v_cache,
        query_start,
        seq_lens,
        block_table,
        num_rows,
        num_splits,
        *q.stride()[:2],
        heads,
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        block_table.stride(0),
        scale,
        softcap or 0.0,
        window or 0,
        DIM=dim,
        SHARED=shared,
        BLOCK_SIZE=k_cache.shape[1],
        TILE_M=tile_m,
        TILE_Q=tile_q,
        TILE_N=tile_n,
        TILE_D=tile_d,
        WINDOWED=window is not None,
        CAPPED=softcap is not None,
        SPLIT=num_splits > 1,
        IN_FLOAT32=exact,
        num_warps=_num_warps(tile_m),
    )
    if num_splits > 1:
        splits = triton.next_power_of_2(num_splits)
        _join[(tokens * heads,)](out, shares, stats, num_splits, DIM=dim, SPLITS=splits, TILE_D=tile_d)
    return out


def _query_tile(rows: int, shared: int, exact: bool) -> int:
    """Rows of a tile: at least one query of `shared` heads."""
    wanted = DECODE_TILE if rows <= DECODE_TILE else PROMPT_TILE // (2 if exact else 1)
    return max(wanted, 1 << (shared - 1).bit_length())


def _num_splits(programs: int, max_keys: int) -> int:
    wanted = min(ENOUGH_PROGRAMS // max(programs, 1), -(-max_keys // LEAST_SHARE), MAX_SPLITS)
    return max(1, wanted)


def _num_warps(tile_m: int) -> int:
    return DECODE_WARPS if tile_m == DECODE_TILE else PROMPT_WARPS
