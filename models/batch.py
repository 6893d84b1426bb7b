"""What a network reads in one step. It has never heard of a request; a decode is a row of length one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths, packed without padding: R rows, T tokens in all."""

    query_start: Tensor  # [R + 1] int32: first token of each row in the packed batch
    seq_lens: Tensor  # [R] int32: tokens of the row that attention sees, cached ones and this step's
    block_table: Tensor  # [R, max_blocks] int32: cache blocks of each row, padded with 0
    kv_slots: Tensor  # [T] int64: where each token's K and V go, block * block_size + offset
    max_query: int  # longest row of this step
    max_seq: int  # longest seq_lens


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The paged memory of one layer."""

    k: Tensor  # [num_blocks, block_size, kv_heads, head_dim]
    v: Tensor  # [num_blocks, block_size, kv_heads, head_dim]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The one argument of forward."""

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    ragged: Ragged
    rows: Any  # kernels.ops.lora.DeltaRows: the adapter slot of each token; None when no row has an adapter
    sample_at: Tensor  # [S] int64: tokens whose logits are wanted
    caches: Sequence[LayerCache]  # one per layer
    plan: Any  # whatever backend.plan returned
    backend: Any  # models.attention.base.AttentionBackend
