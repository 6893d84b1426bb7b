"""Registers csrc/attention.cpp: float32 and bfloat16 caches of the queries' own dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.attention import paged_attention
from .build import DOUBLE, DTYPES, INT, POINTER, function, takes

_attention = function("aril_attention", *[POINTER] * 7, *[INT] * 7, DOUBLE, DOUBLE, INT, INT, INT)


@paged_attention.impl(
    "native",
    when=lambda q, k_cache, v_cache, query_start, seq_lens, block_table, **_: (
        takes(q) and q.stride(1) == q.shape[2] and k_cache.dtype == q.dtype == v_cache.dtype
    ),
    needs="float32 or bfloat16 queries on the CPU, heads side by side, and caches of their dtype",
)
def paged_attention_native(
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
    """Each query's result has the same bits whatever shares the call, and however its prompt was cut."""
    _, heads, dim = q.shape
    out = q.new_empty(q.shape)
    _attention(
        out.data_ptr(),
        q.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        query_start.data_ptr(),
        seq_lens.data_ptr(),
        block_table.data_ptr(),
        seq_lens.shape[0],
        heads,
        k_cache.shape[2],
        dim,
        k_cache.shape[1],
        block_table.stride(0),
        q.stride(0),
        scale,
        softcap or 0.0,
        window or 0,
        DTYPES[q.dtype],
        torch.get_num_threads(),
    )
    return out
