"""The memory of the KV cache itself: how many bytes a block takes, and blocks for every layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...core import pages
from ...kernels.ops.kv import copy_blocks_
from ...models.attention.base import AttentionSpec
from ...models.batch import LayerCache


def block_bytes(specs: Sequence[AttentionSpec], block_size: int) -> int:
    """Bytes of one block over all layers."""
    return sum(2 * block_size * spec.kv_heads * spec.head_dim * spec.cache_dtype.itemsize for spec in specs)


def allocate(
    specs: Sequence[AttentionSpec], num_blocks: int, block_size: int, device: torch.device
) -> list[LayerCache]:
    """Memory for each layer, all zeros: what lies behind the end of a row is masked, but a NaN would show through."""

    def half(spec: AttentionSpec) -> torch.Tensor:
        shape = num_blocks, block_size, spec.kv_heads, spec.head_dim
        if device.type == "cpu":
            return pages.zeros(shape, spec.cache_dtype)  # no memory and no time before they are written to
        return torch.zeros(*shape, dtype=spec.cache_dtype, device=device)

    return [LayerCache(half(spec), half(spec)) for spec in specs]


def copy_blocks(caches: Sequence[LayerCache], copies: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks (from, to) in every layer."""
    source, target = torch.tensor(copies, dtype=torch.int64).to(caches[0].k.device).unbind(1)
    for cache in caches:
        copy_blocks_(cache.k, cache.v, source, target)
