"""Plain weights; also the answer of every format for a matrix that it leaves alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...kernels.ops.matmul import packed_bytes
from ..base import LinearMethod, LinearShape, QuantFormat, Stored, TensorSpec
from ..matrix import Matrix, PlainMatrix


class PlainMethod(LinearMethod):
    """One `weight` [out, in], kept in the model's dtype."""

    def tensors(self, shape: LinearShape) -> dict[str, TensorSpec]:
        size = (shape.out_features, shape.in_features)
        return {"weight": TensorSpec(size, out_axis=0, in_axis=1)}

    def read(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Matrix:
        return PlainMatrix(tensors["weight"].to(shape.dtype))

    def describe(self) -> str:
        return "not quantised"

    def weight_bytes(self, shape: LinearShape) -> int:
        size = shape.out_features, shape.in_features
        return math.prod(size) * shape.dtype.itemsize if shape.only_rows else packed_bytes(*size, shape.dtype)


class Plain(QuantFormat):
    """Every matrix is plain."""

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], stored: Mapping[str, Stored]) -> Plain:
        return cls()

    def linear(self, name: str, shape: LinearShape) -> LinearMethod:
        return PlainMethod(name)


EXPORT = Plain
