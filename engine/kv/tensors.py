"""The memory of the KV cache itself: how many bytes a block takes, and blocks for every layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from ...kernels.ops.kv import copy_blocks_
from ...models.attention.base import AttentionSpec
from ...models.batch import LayerCache

CACHE_LINE = 64  # bytes: a head of a token shall not lie on one more than it must


def block_bytes(specs: Sequence[AttentionSpec], block_size: int) -> int:
    """Bytes of one block over all layers."""
    return sum(2 * block_size * spec.kv_heads * spec.head_dim * spec.cache_dtype.itemsize for spec in specs)


def allocate(
    specs: Sequence[AttentionSpec], num_blocks: int, block_size: int, device: torch.device
) -> list[LayerCache]:
    """Memory for each layer, all zeros: what lies behind the end of a row is masked, but a NaN would show through."""

    def half(spec: AttentionSpec) -> torch.Tensor:
        return _zeros((num_blocks, block_size, spec.kv_heads, spec.head_dim), spec.cache_dtype, device)

    return [LayerCache(half(spec), half(spec)) for spec in specs]


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU as the system gives them, which takes no memory and no time before they are written to."""
    if device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    untouched = torch.from_numpy(np.zeros(num_bytes + CACHE_LINE, dtype=np.uint8))
    skipped = -untouched.data_ptr() % CACHE_LINE
    return untouched[skipped : skipped + num_bytes].view(dtype).view(*shape)


def copy_blocks(caches: Sequence[LayerCache], copies: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks (from, to) in every layer."""
    source, target = torch.tensor(copies, dtype=torch.int64).to(caches[0].k.device).unbind(1)
    for cache in caches:
        copy_blocks_(cache.k, cache.v, source, target)
