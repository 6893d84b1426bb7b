"""Registers the gated activation of csrc/elementwise.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.activation import silu_mul
from .build import DTYPES, INT, POINTER, function, takes

_silu_mul = function("aril_silu_mul", *[POINTER] * 2, *[INT] * 5)


@silu_mul.impl(
    "native",
    when=lambda x: takes(x) and x.dim() == 2,
    needs="float32 or bfloat16 rows [T, 2 I] on the CPU",
)
def silu_mul_native(x: Tensor) -> Tensor:
    """One pass over gate and up."""
    rows, size = x.shape[0], x.shape[1] // 2
    out = x.new_empty(rows, size)
    _silu_mul(out.data_ptr(), x.data_ptr(), rows, size, x.stride(0), DTYPES[x.dtype], torch.get_num_threads())
    return out
