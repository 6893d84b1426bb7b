"""Plain weights; also the answer of every format for a Linear that it leaves alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...kernels.ops.matmul import linear, pack
from ..base import LinearMethod, LinearShape, QuantFormat, StoredWeight, TensorSpec


class PlainMethod(LinearMethod):
    """One `weight` [out, in] in the model's dtype."""

    def tensors(self, shape: LinearShape) -> dict[str, TensorSpec]:
        size = (shape.out_features, shape.in_features)
        return {"weight": TensorSpec(size, shape.dtype, out_axis=0, in_axis=1)}

    def prepare(self, layer: StoredWeight) -> None:
        layer.packed = pack(layer.tensors.pop("weight"))

    def apply(self, layer: StoredWeight, x: Tensor) -> Tensor:
        return linear(x, layer.packed)

    def nbytes(self, layer: StoredWeight) -> int:
        return int(layer.packed.data.nbytes)


class Plain(QuantFormat):
    """Every Linear is plain."""

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Plain:
        return cls()

    def linear(self, name: str, shape: LinearShape) -> LinearMethod:
        return PlainMethod()


EXPORT = Plain
