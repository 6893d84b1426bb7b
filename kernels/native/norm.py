"""Registers the norms of csrc/elementwise.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.norm import add_rms_norm_, rms_norm
from .build import DOUBLE, DTYPES, INT, POINTER, function, takes

_rms_norm = function("aril_rms_norm", *[POINTER] * 3, *[INT] * 4, DOUBLE, INT, INT)
_add_rms_norm = function("aril_add_rms_norm", *[POINTER] * 4, *[INT] * 4, DOUBLE, INT, INT)


@rms_norm.impl(
    "native",
    when=lambda x, weight, eps: (
        takes(x) and weight.dtype == x.dtype and (x.dim() == 2 or (x.dim() == 3 and x.stride(1) == x.shape[2]))
    ),
    needs="float32 or bfloat16 rows on the CPU, [T, H] or [T, heads, H] with the heads side by side",
)
def rms_norm_native(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """One pass for the squares, one for the result."""
    out = x.new_empty(x.shape)
    _rms_norm(
        out.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        x.shape[0] if x.dim() == 2 else x.shape[0] * x.shape[1],
        1 if x.dim() == 2 else x.shape[1],
        x.shape[-1],
        x.stride(0),
        eps,
        DTYPES[x.dtype],
        torch.get_num_threads(),
    )
    return out


@add_rms_norm_.impl(
    "native",
    when=lambda x, residual, weight, eps: (
        takes(x) and x.dim() == 2 and residual.stride(1) == 1 and residual.dtype == weight.dtype == x.dtype
    ),
    needs="float32 or bfloat16 rows [T, H] on the CPU, all of one dtype",
)
def add_rms_norm_native_(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Adds and norms a row while it is in the cache."""
    out = x.new_empty(x.shape)
    _add_rms_norm(
        out.data_ptr(),
        x.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        x.shape[0],
        x.shape[1],
        x.stride(0),
        residual.stride(0),
        eps,
        DTYPES[x.dtype],
        torch.get_num_threads(),
    )
    return out
