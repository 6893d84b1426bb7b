"""Attention of one layer: it knows its spec and its place, and asks the batch's backend for the rest."""

from __future__ import annotations

from torch import Tensor

from ..attention.base import AttentionSpec
from ..batch import ForwardBatch


class Attention:
    """Causal attention over the paged memory of layer number `layer`."""

    def __init__(self, layer: int, spec: AttentionSpec) -> None:
        self.layer = layer
        self.spec = spec

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """q[T, heads, D] and k, v[T, kv_heads, D], rotated, -> [T, heads, D]; writes k and v into the cache."""
        out: Tensor = batch.backend.forward(q, k, v, batch.caches[self.layer], batch.plan, self.spec)
        return out
