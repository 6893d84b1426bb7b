"""Cache writes: plain copies, so any dtype goes."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..ops.kv import copy_blocks_, write_kv_
from . import NEEDS, takes

SPILL_BOUND = 0  # bytes a thread
COPY_BLOCK = 2048  # 16 values a thread with 4 warps: two 16-byte loads of a half type


@triton.jit
def _copy_heads(
    cache, new, slot, token, token_stride, head_stride, num_heads, dim, HEADS: tl.constexpr, D: tl.constexpr
):
    head, d = tl.arange(0, HEADS)[:, None], tl.arange(0, D)[None, :]
    inside = (head < num_heads) & (d < dim)
    value = tl.load(new + token * token_stride + head * head_stride + d, mask=inside)
    tl.store(cache + (slot * num_heads + head) * dim + d, value, mask=inside)


@triton.jit
def _write_kv(
    k_cache,
    v_cache,
    k,
    v,
    slots,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    num_heads,
    dim,
    HEADS: tl.constexpr,
    D: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    _copy_heads(k_cache, k, slot, token, k_token_stride, k_head_stride, num_heads, dim, HEADS, D)
    _copy_heads(v_cache, v, slot, token, v_token_stride, v_head_stride, num_heads, dim, HEADS, D)


@triton.jit
def _copy_blocks(k_cache, v_cache, src, dst, size, BLOCK: tl.constexpr):
    source = tl.load(src + tl.program_id(0)) * size
    target = tl.load(dst + tl.program_id(0)) * size
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    tl.store(k_cache + target + at, tl.load(k_cache + source + at, mask=inside), mask=inside)
    tl.store(v_cache + target + at, tl.load(v_cache + source + at, mask=inside), mask=inside)


def _writable(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> bool:
    together = k_cache.is_contiguous() and v_cache.is_contiguous() and k.stride(2) == v.stride(2) == 1
    return together and takes(k_cache) and k_cache.dtype == k.dtype == v.dtype


@write_kv_.impl("triton", when=_writable, needs=NEEDS + ", contiguous caches and heads, one dtype")
def write_kv_triton_(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """One program a token; tokens and heads may stand apart."""
    tokens, heads, dim = k.shape
    _write_kv[(tokens,)](
        k_cache,
        v_cache,
        k,
        v,
        slots,
        *k.stride()[:2],
        *v.stride()[:2],
        heads,
        dim,
        HEADS=triton.next_power_of_2(heads),
        D=triton.next_power_of_2(dim),
    )


@copy_blocks_.impl(
    "triton",
    when=lambda k_cache, v_cache, src, dst: takes(k_cache) and k_cache.is_contiguous() and v_cache.is_contiguous(),
    needs=NEEDS + ", contiguous caches",
)
def copy_blocks_triton_(k_cache: Tensor, v_cache: Tensor, src: Tensor, dst: Tensor) -> None:
    """Every copy is spread over several programs."""
    size = k_cache[0].numel()
    grid = (len(src), triton.cdiv(size, COPY_BLOCK))
    _copy_blocks[grid](k_cache, v_cache, src.contiguous(), dst.contiguous(), size, BLOCK=COPY_BLOCK)
