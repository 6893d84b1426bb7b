"""Registers csrc/int8.cpp: int8 weights in panels of quads, and the rows that meet them (csrc/rounding.cpp)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...core import pages
from ..ops.int8 import Int8Rows, Int8Weight, matmul_int8, packer, quantize_rows, sum_rows
from .build import DTYPES, INT, POINTER, function, library, takes

PANEL_WIDTH: int = library().aril_panel_width()
MOST_INPUTS = 65536  # whose products of bytes 32 bits can add up

_matmul = function("aril_matmul_int8", *[POINTER] * 7, *[INT] * 5)
_quantize = function("aril_quantize_rows", *[POINTER] * 4, *[INT] * 4, POINTER, *[INT] * 3)
_sum_rows = function("aril_sum_rows", POINTER, POINTER, *[INT] * 5)
_pack_plane = function("aril_pack_plane", POINTER, POINTER, *[INT] * 7)


def _unpacked(weight: Int8Weight) -> Tensor:
    return weight.data.transpose(1, 2).reshape(-1, weight.data.shape[1] * 4)[: weight.n, : weight.k]


@packer("native", "quads", unpack=_unpacked)
def pack_native(weight: Int8Weight) -> Int8Weight | None:
    """Four inputs of an output side by side, as a dot product of bytes takes them: [panels, ceil(K / 4), P, 4]."""
    if not weight.data.is_cpu or weight.k > MOST_INPUTS:
        return None
    panels = pages.zeros((-(-weight.n // PANEL_WIDTH), -(-weight.k // 4), PANEL_WIDTH, 4), torch.int8)
    strides, threads = weight.data.stride(), torch.get_num_threads()
    _pack_plane(panels.data_ptr(), weight.data.data_ptr(), weight.n, weight.k, *strides, 0, 8, threads)
    return replace(weight, data=panels, layout="quads")


@matmul_int8.impl(
    "native",
    when=lambda x, weight, dtype: (
        weight.layout == "quads" and weight.data.shape[2] == PANEL_WIDTH and dtype in DTYPES and x.codes.is_contiguous()
    ),
    needs=f"rows on the CPU, a result in float32 or bfloat16 and a weight in panels of {PANEL_WIDTH}",
)
def matmul_int8_native(x: Int8Rows, weight: Int8Weight, dtype: torch.dtype) -> Tensor:
    """Integer sums are exact, so a row's result does not depend on what shares the call."""
    out = torch.empty(len(x.codes), weight.n, dtype=dtype)
    _matmul(
        out.data_ptr(),
        x.codes.data_ptr(),
        x.scales.contiguous().data_ptr(),
        None if x.zeros is None else x.zeros.data_ptr(),
        weight.data.data_ptr(),
        weight.scales.data_ptr(),
        weight.sums.data_ptr(),
        len(x.codes),
        weight.n,
        weight.k,
        DTYPES[dtype],
        torch.get_num_threads(),
    )
    return out


@quantize_rows.impl(
    "native", when=lambda x, scale, zero, symmetric: takes(x), needs="float32 or bfloat16 rows on the CPU"
)
def quantize_rows_native(x: Tensor, scale: Tensor | None, zero: int, symmetric: bool) -> Int8Rows:
    """A row is read twice: for its range, and to be divided by its scale."""
    rows, k = x.shape
    codes, scales = torch.empty(rows, k, dtype=torch.int8), torch.empty(rows, dtype=torch.float32)
    has_zeros = zero != 0 if scale is not None else not symmetric
    zeros = torch.empty(rows, dtype=torch.int32) if has_zeros else None
    _quantize(
        codes.data_ptr(),
        scales.data_ptr(),
        None if zeros is None else zeros.data_ptr(),
        x.data_ptr(),
        rows,
        k,
        x.stride(0),
        DTYPES[x.dtype],
        None if scale is None else scale.data_ptr(),
        zero,
        symmetric,
        torch.get_num_threads(),
    )
    return Int8Rows(codes, scales, zeros)


@sum_rows.impl("native", when=lambda data: data.is_cpu, needs="integers on the CPU")
def sum_rows_native(data: Tensor) -> Tensor:
    """At memory speed; torch's sum is a tenth of it."""
    sums = torch.empty(len(data), dtype=torch.int32)
    _sum_rows(sums.data_ptr(), data.data_ptr(), *data.shape, *data.stride(), torch.get_num_threads())
    return sums
