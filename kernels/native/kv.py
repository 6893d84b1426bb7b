"""Registers the cache writes of csrc/elementwise.cpp: of any dtype, for they only move bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.kv import write_kv_
from .build import INT, POINTER, function

_write_kv = function("aril_write_kv", *[POINTER] * 5, *[INT] * 5)


def _side_by_side(x: Tensor) -> bool:
    return x.is_cpu and x.stride(2) == 1 and x.stride(1) == x.shape[2]


@write_kv_.impl(
    "native",
    when=lambda k_cache, v_cache, k, v, slots: (
        _side_by_side(k) and _side_by_side(v) and k_cache.dtype == k.dtype and v_cache.dtype == v.dtype == k.dtype
    ),
    needs="keys and values on the CPU, heads side by side, in the caches' dtype",
)
def write_kv_native_(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """One copy for each token and cache."""
    width = k.element_size()
    _write_kv(
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        slots.data_ptr(),
        k.shape[0],
        k.shape[1] * k.shape[2] * width,
        k.stride(0) * width,
        v.stride(0) * width,
        torch.get_num_threads(),
    )
