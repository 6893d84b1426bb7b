"""Attention of one layer: it knows its spec and its place, and asks the batch's backend for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ...kernels.ops.rounding import round_to_e4m3
from ...quant.base import FLOATS
from ..attention.base import AttentionSpec
from ..batch import ForwardBatch
from ..wanted import Wanted


class Attention:
    """Causal attention over the paged memory of layer number `layer`.

    `scales`: where the checkpoint was calibrated for an FP8 KV cache, the tensors that hold the scales of `k` and `v`.
    Keys (rotated) and values are then rounded to e4m3, and kept in the cache's own dtype.
    """

    def __init__(
        self, layer: int, spec: AttentionSpec, *, device: torch.device, scales: Mapping[str, str] | None = None
    ) -> None:
        self.layer = layer
        self.spec = spec
        self.device = device
        self._names = scales or {}
        self._scales: dict[str, Tensor] = {}  # float32 [1], of k and of v

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """q[T, heads, D] and k, v[T, kv_heads, D], rotated, -> [T, heads, D]; writes k and v into the cache."""
        if self._scales:
            k, v = self._rounded("k", k), self._rounded("v", v)
        out: Tensor = batch.backend.forward(q, k, v, batch.caches[self.layer], batch.plan, self.spec)
        return out

    def wanted(self) -> Iterator[tuple[str, Wanted]]:
        """(checkpoint name, what is wanted)."""
        for name in dict.fromkeys(self._names.values()):  # older tools wrote one scale for both
            yield name, Wanted((1,), FLOATS, partial(self._put, name))

    def nbytes(self) -> int:
        return sum(scale.nbytes for scale in self._scales.values())

    def _rounded(self, which: str, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return round_to_e4m3(flat, flat.shape[1], self._scales[which]).view(x.shape)

    def _put(self, name: str, tensor: Tensor) -> None:
        scale = tensor.float().reshape(1)
        if not (scale.isfinite() & (scale > 0)).all():
            raise Unsupported(f"{name} is {scale.item()}; the scale of a KV cache is above 0", param="model")
        for which in ("k", "v"):
            if self._names[which] == name:
                self._scales[which] = scale.to(self.device, copy=True)
