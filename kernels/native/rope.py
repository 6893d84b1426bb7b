"""Registers the rotary positions of csrc/elementwise.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.rope import rotate_
from .build import DTYPES, INT, POINTER, function, takes

_rotate = function("aril_rotate", *[POINTER] * 5, *[INT] * 10)


@rotate_.impl(
    "native",
    when=lambda q, k, positions, cos, sin, **_: (
        takes(q) and k.dtype == q.dtype and q.stride(1) == k.stride(1) == q.shape[2] and k.stride(2) == 1
    ),
    needs="float32 or bfloat16 q and k on the CPU, heads side by side",
)
def rotate_native_(
    q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False
) -> None:
    """q and k in one pass over the tokens."""
    _rotate(
        q.data_ptr(),
        k.data_ptr(),
        positions.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        q.shape[0],
        q.shape[1],
        k.shape[1],
        q.shape[2],
        cos.shape[1],
        q.stride(0),
        k.stride(0),
        interleaved,
        DTYPES[q.dtype],
        torch.get_num_threads(),
    )
