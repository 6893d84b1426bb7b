"""Writing the paged KV cache. Which blocks are free, shared or somebody's is not known here."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op


@op
def write_kv_(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Put `k` and `v` [T, Hk, D] of this step's tokens at `slots` [T] int64 (block * block_size + offset).

    The caches are contiguous [num_blocks, block_size, Hk, D]. Slots are distinct and inside the cache.
    """
    for cache, new in ((k_cache, k), (v_cache, v)):
        cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, new.to(cache.dtype))


@op
def copy_blocks_(k_cache: Tensor, v_cache: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copy whole blocks `src` [C] to `dst` [C], both int64; no block is in both, none twice in `dst`."""
    for cache in (k_cache, v_cache):
        cache.index_copy_(0, dst, cache.index_select(0, src))


@write_kv_.cases(Tolerances(float32=0.0, float16=0.0, bfloat16=0.0))
def _write_cases(make: Inputs) -> Iterator[Case]:
    for label, blocks, heads, dim, tokens, large in (
        ("few tokens", 4, 2, 16, 5, False),
        ("odd head", 3, 3, 20, 1, False),
        ("Llama 8B", 64, 8, 128, 64, True),
    ):
        caches = make.normal(blocks, 16, heads, dim), make.normal(blocks, 16, heads, dim)
        fused = make.normal(tokens, 3, heads, dim)  # as a fused projection gives them: rows stand apart
        slots = make.permutation(blocks * 16)[:tokens]
        yield Case(label, (*caches, fused[:, 1], fused[:, 2], slots), large=large)


@copy_blocks_.cases(Tolerances(float32=0.0, float16=0.0, bfloat16=0.0))
def _copy_cases(make: Inputs) -> Iterator[Case]:
    for label, blocks, heads, dim, copies, large in (
        ("two", 6, 2, 20, 2, False),
        ("none", 2, 1, 16, 0, False),
        ("Llama 8B", 64, 8, 128, 8, True),
    ):
        order = make.permutation(blocks)
        caches = make.normal(blocks, 16, heads, dim), make.normal(blocks, 16, heads, dim)
        yield Case(label, (*caches, order[:copies], order[copies : 2 * copies]), large=large)
    caches, pairs = (make.normal(8, 16, 1, 16), make.normal(8, 16, 1, 16)), make.permutation(8)[:6].view(3, 2)
    yield Case("pairs, so that neither list lies in one piece", (*caches, pairs[:, 0], pairs[:, 1]))
