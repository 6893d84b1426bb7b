"""x times a weight of small codes, which become numbers in registers on their way to the matrix unit.

The weight is the left operand (W x^T): its tile comes to the matrix unit from registers, where the codes are unpacked,
and a tile of 16 rows of x wastes no part of the unit. Codes minus zero points are exact in every type of x; scales meet
the float32 sums of their group. K is cut into shares by the weight's shape alone. A share's sum does not depend on who
adds the shares up, one program for all of them or a second kernel where rows are few, so a row's result does not depend
on the batch around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops.grouped import PLANES, GroupedWeight, Groups, matmul_grouped
from . import NEEDS, takes
from .dot import dot, in_float32
from .runs import LAYOUT, num_fields, run_of, table_of
from .unpack import numbers_of, values_of, zeros_of


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program computes, and with how many warps and buffers."""

    rows: int
    outputs: int
    warps: int
    stages: int


# By the codes of a run. Reasoned and read off the compile test; not yet measured on a device. Few rows are bound by
# reading the weight: small tiles, several of which share a multiprocessor. Many rows use each unpacked code 64 times;
# 128 times would spill on sm_80.
FEW = {32: Tile(16, 64, warps=4, stages=3), 16: Tile(16, 64, warps=4, stages=4)}
MANY = {32: Tile(64, 128, warps=8, stages=2), 16: Tile(64, 64, warps=4, stages=2)}
SPILL_BOUND = 0  # bytes a thread, in half types; exact float32 is for checks and may spill

# Fewer programs than twice the multiprocessors (132 on an H100) leave memory idle; a share of less than 512 inputs
# costs more in joining than it saves.
ENOUGH_PROGRAMS = 256
LEAST_SHARE = 512
MAX_SHARES = 8

GATHERED_ROWS = 2  # up to which x's columns are looked up in the product; more rows are put in order ahead of it
AHEAD = 4  # runs whose scales are asked for at once; half of it where there are minima too, for want of registers
SUM_BLOCK = 1024


@triton.jit
def _multiply(
    out,
    x,
    sums,
    order,
    low,
    high,
    table,
    scales,
    coarse_scales,
    zeros,
    mins,
    coarse_mins,
    x_stride,
    plane_stride,
    tokens,
    n_size,
    k_size,
    num_groups,
    share,
    num_shares,
    ZERO: tl.constexpr,
    MINS: tl.constexpr,
    ORDERED: tl.constexpr,
    SPLIT: tl.constexpr,
    VALUES: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    FIELDS: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    TOGETHER: tl.constexpr,
    PARTS: tl.constexpr,
    AHEAD: tl.constexpr,
    SCALE_SPAN: tl.constexpr,
    MIN_SPAN: tl.constexpr,
    TILE_T: tl.constexpr,
    TILE_N: tl.constexpr,
    STAGES: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
):
    n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    t = tl.program_id(1) * TILE_T + tl.arange(0, TILE_T)
    w = tl.arange(0, RUN)
    inside, live = n < n_size, t < tokens
    row = n.to(tl.int64)[:, None] * plane_stride + w[None, :]
    token = t.to(tl.int64)[None, :]
    num_steps = tl.cdiv(k_size, RUN * FIELDS)
    first = tl.program_id(2)
    last = first + 1 if SPLIT else num_shares
    total = tl.zeros((TILE_N, TILE_T), tl.float32)
    for at in range(first, last):
        acc = tl.zeros((TILE_N, TILE_T), tl.float32)
        for step in tl.range(at * share, tl.minimum((at + 1) * share, num_steps), num_stages=STAGES):
            low_words = tl.load(low + row + step * RUN, mask=inside[:, None], other=0).to(tl.int32)
            high_words = low_words
            if HIGH:
                high_words = tl.load(high + row + step * RUN, mask=inside[:, None], other=0).to(tl.int32)
            for ahead in tl.static_range(0, FIELDS, AHEAD):
                terms = ()  # asked for ahead of the products, so as to wait for them once
                for i in tl.static_range(ahead, ahead + AHEAD, TOGETHER):
                    for p in tl.static_range(PARTS):
                        g = tl.minimum((step * FIELDS + i) * RUN // GROUP + p, num_groups - 1)
                        scale = numbers_of(scales, coarse_scales, g, n, inside, n_size, SCALE_SPAN)
                        floor = numbers_of(mins, coarse_mins, g, n, inside, n_size, MIN_SPAN) if MINS else 0.0
                        terms += ((scale, zeros_of(zeros, g, n, inside, n_size, ZERO), floor),)
                for i in tl.static_range(ahead, ahead + AHEAD, TOGETHER):
                    for p in tl.static_range(PARTS):
                        begin = (step * FIELDS + i) * RUN
                        group = begin // GROUP + p
                        scale, zero, floor = terms[(i - ahead) // TOGETHER * PARTS + p]
                        part = tl.zeros((TILE_N, TILE_T), tl.float32)
                        for j in tl.static_range(i, i + TOGETHER):
                            k = (step * FIELDS + j) * RUN + w
                            held = k < k_size
                            column = tl.load(order + k, mask=held, other=0) if ORDERED else k
                            if PARTS > 1:
                                held = held & (k // GROUP == group)
                            x_at = x + token * x_stride + column[:, None]
                            x_tile = tl.load(x_at, mask=held[:, None] & live[None, :], other=0.0)
                            w_tile = values_of(low_words, high_words, zero, table, j, LOW, HIGH, VALUES)
                            part = dot(w_tile, x_tile, part, IN_FLOAT32)
                        acc += part * scale[:, None]
                        if MINS:  # added once for each group, where it begins
                            from_here = (group * GROUP >= begin) & (group * GROUP < begin + TOGETHER * RUN)
                            counted = live & from_here & (group < num_groups)
                            inputs = tl.load(sums + group * tokens + t, mask=counted, other=0.0)
                            acc += floor[:, None] * inputs[None, :]
        total += acc
    target = out + token * n_size + n[:, None]
    if SPLIT:
        target += first.to(tl.int64) * tokens * n_size
    tl.store(target, total.to(out.dtype.element_ty), mask=inside[:, None] & live[None, :])


@triton.jit
def _join(out, shares, size, num_shares, BLOCK: tl.constexpr):
    """The shares in their order, as one program for all of them adds them up."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    source = shares + at
    for _ in range(num_shares):
        total += tl.load(source, mask=at < size, other=0.0)
        source += size
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < size)


@triton.jit
def _sum_groups(sums, x, x_stride, tokens, k_size, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """What the minimum of each group is multiplied by: the sum of a row's inputs in it."""
    row, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    total = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, GROUP, BLOCK):
        inner = begin + tl.arange(0, BLOCK)
        k = g * GROUP + inner
        total += tl.load(x + row * x_stride + k, mask=(inner < GROUP) & (k < k_size), other=0.0).to(tl.float32)
    tl.store(sums + g * tokens + row, tl.sum(total, 0))


@matmul_grouped.impl(
    "triton",
    when=lambda x, weight: takes(x) and weight.layout == LAYOUT,
    needs=NEEDS + ", with a weight that was packed there",
)
def matmul_grouped_triton(x: Tensor, weight: GroupedWeight) -> Tensor:
    """One launch; a second one joins the shares of few rows, and one ahead puts x in order or adds up its groups."""
    ordered = weight.order is not None and weight.mins is None and len(x) <= GATHERED_ROWS
    if weight.order is not None and not ordered:
        x = x[:, weight.order]
    if x.stride(1) != 1:
        x = x.contiguous()
    tokens, k_size = x.shape
    out = x.new_empty(tokens, weight.n)
    if not tokens:
        return out
    run = run_of(weight)
    exact = in_float32(x.dtype)
    tile = FEW[run] if tokens <= FEW[run].rows else MANY[run]
    grid = (triton.cdiv(weight.n, tile.outputs), triton.cdiv(tokens, tile.rows))
    share, num_shares = _shares(weight)
    split = num_shares > 1 and grid[0] * grid[1] < ENOUGH_PROGRAMS
    shares = x.new_empty(num_shares, tokens, weight.n, dtype=torch.float32) if split else out
    absent = weight.scales.fine
    mins = weight.mins or Groups(absent)
    _multiply[(*grid, num_shares if split else 1)](
        shares,
        x,
        _sums(x, weight) if weight.mins is not None else absent,
        weight.order if ordered else absent,
        weight.planes[0],
        weight.planes[1 if len(PLANES[weight.bits]) == 2 else 0],
        absent if weight.table is None else table_of(weight, x.dtype),
        absent,
        absent if weight.scales.coarse is None else weight.scales.coarse,
        weight.zeros if isinstance(weight.zeros, Tensor) else absent,
        mins.fine,
        absent if mins.coarse is None else mins.coarse,
        x.stride(0),
        weight.planes[0].stride(0),
        tokens,
        weight.n,
        k_size,
        weight.num_groups,
        share,
        num_shares,
        **_kind(weight),
        ORDERED=ordered,
        SPLIT=split,
        TILE_T=tile.rows,
        TILE_N=tile.outputs,
        STAGES=1 if exact else tile.stages,
        IN_FLOAT32=exact,
        num_warps=tile.warps,
    )
    if split:
        _join[(triton.cdiv(out.numel(), SUM_BLOCK),)](out, shares, out.numel(), num_shares, BLOCK=SUM_BLOCK)
    return out


def _kind(weight: GroupedWeight) -> dict[str, object]:
    """What is compiled in: the terms that the weight has, and how its groups lie on the runs."""
    fields, run = num_fields(weight.bits), run_of(weight)
    low, high = (*PLANES[weight.bits], 0)[:2]
    group = weight.group if weight.num_groups > 1 else 1 << 30
    together = math.gcd(group // run, fields) if group % run == 0 else 1
    return {
        "ZERO": None if isinstance(weight.zeros, Tensor) else float(weight.zeros),
        "MINS": weight.mins is not None,
        "VALUES": weight.values,
        "LOW": low,
        "HIGH": high,
        "FIELDS": fields,
        "RUN": run,
        "GROUP": group,
        "TOGETHER": together,
        "PARTS": 1 if group % run == 0 else (run + group - 2) // group + 1,
        "AHEAD": max(together, AHEAD if weight.mins is None else AHEAD // 2),
        "SCALE_SPAN": _span(weight.scales),
        "MIN_SPAN": _span(weight.mins) if weight.mins is not None else 0,
    }


def _span(groups: Groups) -> int:
    return 0 if groups.coarse is None else groups.span


def _shares(weight: GroupedWeight) -> tuple[int, int]:
    """Steps of a share, and how many shares there are: a matter of the weight alone."""
    wanted = min(ENOUGH_PROGRAMS // triton.cdiv(weight.n, FEW[32].outputs), weight.k // LEAST_SHARE, MAX_SHARES)
    num_steps = triton.cdiv(weight.k, run_of(weight) * num_fields(weight.bits))
    share = triton.cdiv(num_steps, max(1, wanted))
    return share, triton.cdiv(num_steps, share)


def _sums(x: Tensor, weight: GroupedWeight) -> Tensor:
    """The inputs of each group, added up: float32 [G, T]."""
    sums = x.new_empty(weight.num_groups, len(x), dtype=torch.float32)
    group = min(weight.group, weight.k)
    block = min(SUM_BLOCK, triton.next_power_of_2(group))
    _sum_groups[len(x), weight.num_groups](
        sums, x, x.stride(0), len(x), weight.k, GROUP=group, BLOCK=block, num_warps=1
    )
    return sums
