"""Registers csrc/rounding.cpp: rows rounded to e4m3 or to small integers, and read back."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.rounding import round_to_e4m3, round_to_integers
from .build import DTYPES, INT, POINTER, function, takes

_to_e4m3 = function("aril_round_to_e4m3", POINTER, POINTER, *[INT] * 5, POINTER, INT)
_to_integers = function("aril_round_to_integers", POINTER, POINTER, *[INT] * 8)


@round_to_e4m3.impl("native", when=lambda x, group, scale: takes(x), needs="float32 or bfloat16 rows on the CPU")
def round_to_e4m3_native(x: Tensor, group: int, scale: Tensor | None) -> Tensor:
    """By float arithmetic alone: torch's conversions to e4m3 take a table of branches."""
    out = x.new_empty(x.shape)
    given = None if scale is None else scale.data_ptr()
    threads = torch.get_num_threads()
    _to_e4m3(out.data_ptr(), x.data_ptr(), *x.shape, x.stride(0), DTYPES[x.dtype], max(group, 1), given, threads)
    return out


@round_to_integers.impl(
    "native", when=lambda x, bits, group, symmetric: takes(x), needs="float32 or bfloat16 rows on the CPU"
)
def round_to_integers_native(x: Tensor, bits: int, group: int, symmetric: bool) -> Tensor:
    """A group is read twice: for its range, and to be divided by its scale."""
    out = x.new_empty(x.shape)
    threads = torch.get_num_threads()
    _to_integers(out.data_ptr(), x.data_ptr(), *x.shape, x.stride(0), DTYPES[x.dtype], bits, group, symmetric, threads)
    return out
