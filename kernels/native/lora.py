"""Registers csrc/lora.cpp: shrink and expand over the pieces of each adapter's tokens."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from ..ops.lora import DeltaRows, add_delta_, foresee_delta
from .build import DTYPES, INT, POINTER, function, takes

_add_delta = function("aril_add_delta", *[POINTER] * 7, *[INT] * 7)
_foresee_delta = function("aril_foresee_delta", *[POINTER] * 4, *[INT] * 4)


@functools.cache
def _columns(parts: tuple[tuple[int, int], ...]) -> ctypes.Array[ctypes.c_int64]:
    """(start, size) of each part, as C reads them."""
    return (ctypes.c_int64 * (2 * len(parts)))(*(number for part in parts for number in part))


@add_delta_.impl(
    "native",
    when=lambda y, x, arena, table, rows, parts: takes(y) and takes(x) and x.dtype == y.dtype == arena.dtype,
    needs="float32 or bfloat16 tensors on the CPU, all of one dtype",
)
def add_delta_native_(
    y: Tensor, x: Tensor, arena: Tensor, table: Tensor, rows: DeltaRows, parts: tuple[tuple[int, int], ...]
) -> None:
    """Each row's result has the same bits whatever shares the call."""
    if not rows.segments:
        return
    _add_delta(
        y.data_ptr(),
        x.data_ptr(),
        arena.data_ptr(),
        table.data_ptr(),
        rows.order.data_ptr(),
        rows.pieces.data_ptr(),
        ctypes.addressof(_columns(parts)),
        x.shape[1],
        rows.pieces.shape[0],
        len(parts),
        y.stride(0),
        x.stride(0),
        DTYPES[y.dtype],
        torch.get_num_threads(),
    )


@foresee_delta.impl("native", when=lambda arena, *_, **__: takes(arena), needs="a CPU arena of float32 or bfloat16")
def foresee_delta_native(
    arena: Tensor, table: Tensor, rows: DeltaRows, parts: tuple[tuple[int, int], ...], in_features: int
) -> None:
    """The products of up to 96 rows bring it, where they are none of pairs (csrc/foreseen.h)."""
    _foresee_delta(
        arena.data_ptr(),
        table.data_ptr(),
        rows.pieces.data_ptr(),
        ctypes.addressof(_columns(parts)),
        in_features,
        rows.pieces.shape[0],
        len(parts),
        arena.itemsize,
    )
