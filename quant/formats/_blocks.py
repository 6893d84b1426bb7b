"""Scales of a weight that is cut into blocks, in whatever shape a tool wrote them, as numbers per group and output."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ..base import LinearShape, Stored, TensorSpec


@dataclass(frozen=True, slots=True)
class Blocks:
    """What one scale is for: `rows` outputs by `columns` inputs; None = all there are. The last ones may be shorter."""

    rows: int | None = None
    columns: int | None = None

    def counts(self, shape: LinearShape) -> tuple[int, int]:
        """Blocks along the outputs and along the inputs."""
        return -(-shape.out_features // self._rows(shape)), -(-shape.in_features // self.group(shape))

    def group(self, shape: LinearShape) -> int:
        """Inputs under one scale."""
        return min(self.columns or shape.in_features, shape.in_features)

    def spec(self, shape: LinearShape, found: Stored | None, dtypes: tuple[torch.dtype, ...]) -> TensorSpec:
        """The scales as the checkpoint must hold them: [N blocks, K blocks], or as `found`, without dimensions of 1."""
        counts = self.counts(shape)
        alike = found is not None and [n for n in found.shape if n != 1] == [n for n in counts if n != 1]
        size = found.shape if found is not None and alike else counts
        out_axis, in_axis = (0, 1) if size == counts else (None, None)
        return TensorSpec(size, dtypes, out_axis=out_axis, in_axis=in_axis)

    def per_group(self, numbers: Tensor, shape: LinearShape) -> Tensor:
        """Those numbers for each group of inputs and each output, copied: [G, N]."""
        rows, columns = self.counts(shape)
        grid = numbers.reshape(rows, columns).t()  # [G, N blocks]
        if self._rows(shape) > 1:
            grid = grid.repeat_interleave(self._rows(shape), 1)[:, : shape.out_features]
        return torch.empty(grid.shape, dtype=numbers.dtype).copy_(grid)

    def describe(self) -> str:
        if self.rows is None:
            return "one scale" if self.columns is None else f"columns of {self.columns}"
        if self.columns is None:
            return "a scale per output"
        return f"group {self.columns}" if self.rows == 1 else f"blocks of {self.rows} x {self.columns}"

    def _rows(self, shape: LinearShape) -> int:
        return min(self.rows or shape.out_features, shape.out_features)


def finite(numbers: Tensor, name: str) -> Tensor:
    """`numbers`, unless one of them is none; raises Unsupported, naming the tensor."""
    if not numbers.isfinite().all():
        raise Unsupported(f"{name} holds numbers that are not finite", param="model")
    return numbers


def positive(number: Tensor, name: str) -> float:
    """The one number of a scale that divides; raises Unsupported, naming the tensor."""
    value = float(number.float().reshape(()))
    if not (math.isfinite(value) and value > 0):
        raise Unsupported(f"{name} is {value}; what divides activations is above 0", param="model")
    return value
