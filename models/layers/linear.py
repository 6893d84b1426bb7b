"""The one Linear and its three seams: how the weight is stored, what is added to each row, how ranks meet.

Every projection of every network is one of these, plain or fused, whatever its format and whoever adapts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ...kernels.ops.activation import silu_mul
from ...quant.base import FLOATS, LinearShape, QuantFormat
from ...quant.matrix import Matrix, Product, product_of
from ..batch import ForwardBatch
from ..parallel import Ranks
from ..wanted import Wanted
from .arrival import Arrival


@dataclass(frozen=True, slots=True)
class Part:
    """One matrix of the checkpoint inside a Linear; `name` is its module path there and in PEFT files."""

    name: str
    start: int  # first output
    size: int  # outputs


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """x[T, in_features] -> the outputs of `parts` (module path, size), one after the other.

    `splits_inputs`: several ranks would hold slices of the inputs and sum their results, rather than slices of the
    outputs.
    """

    in_features: int
    parts: tuple[tuple[str, int], ...]
    dtype: torch.dtype
    device: torch.device
    bias: bool = False
    splits_inputs: bool = False


class Delta(Protocol):
    """What adapters add to a Linear."""

    def foresee(self, x: Tensor, rows: Any) -> None:
        """A hint, before the product of x[T, in]."""

    def add_(self, y: Tensor, x: Tensor, rows: Any) -> None:
        """y[T, out] += each row's own update of x[T, in], in place."""


class Linear:
    """y = product(x) + delta(x), joined over the ranks, + bias.

    Each part is read as soon as its tensors are there; the parts are packed for the kernels when the last one is.
    """

    def __init__(self, spec: LinearSpec, quant: QuantFormat, ranks: Ranks) -> None:
        self.spec = spec
        self.ranks = ranks
        self.in_features = spec.in_features
        self.parts = tuple(_laid_out(spec.parts))
        self.out_features = sum(part.size for part in self.parts)
        self.delta: Delta | None = None
        self.bias: Tensor | None = None
        self.product: Product | None = None
        self.arrivals = tuple(self._arrival(part, quant) for part in self.parts)
        self._biased = [part for part in self.parts if spec.bias or quant.has_bias(part.name)]
        self._matrices: dict[str, Matrix] = {}  # those that wait for the others

    def __call__(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """x[T, in_features] -> [T, out_features]."""
        assert self.product is not None
        if self.delta is not None:
            self.delta.foresee(x, batch.rows)
        y = self.product(x)
        if self.delta is not None:
            self.delta.add_(y, x, batch.rows)
        return self.join(y)

    def gated(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """silu of the first half of the outputs times the second half: [T, out_features / 2].

        Where nothing is added to the product the halves meet inside of it, which gives the same bits.
        """
        assert self.product is not None
        if batch.rows is None and self.bias is None and not self.spec.splits_inputs:
            return self.product.gated(x)
        return silu_mul(self(x, batch))

    def join(self, y: Tensor) -> Tensor:
        """Sum the ranks' partial results where the inputs are split, then add the bias once."""
        if self.spec.splits_inputs:
            y = self.ranks.reduce(y)
        return y if self.bias is None else y.add_(self.bias)

    def wanted(self) -> Iterator[tuple[str, Wanted]]:
        """(checkpoint name, what is wanted) of every tensor of every part."""
        for part in self._biased:
            yield f"{part.name}.bias", Wanted((part.size,), FLOATS, partial(self._put_bias, part))
        for arrival in self.arrivals:
            yield from arrival.wanted()

    def nbytes(self) -> int:
        """Bytes of weight and bias, as they are kept."""
        weight = 0 if self.product is None else self.product.nbytes
        return weight + (0 if self.bias is None else self.bias.nbytes)

    def _arrival(self, part: Part, quant: QuantFormat) -> Arrival:
        shape = LinearShape(self.spec.in_features, part.size, self.spec.dtype)
        return Arrival(part.name, quant.linear(part.name, shape), shape, partial(self._arrived, part))

    def _arrived(self, part: Part, matrix: Matrix) -> None:
        self._matrices[part.name] = matrix
        if len(self._matrices) == len(self.parts):
            self.product = product_of([self._matrices.pop(each.name) for each in self.parts], self.spec.device)

    def _put_bias(self, part: Part, tensor: Tensor) -> None:
        if not self.spec.bias and not tensor.any():
            return  # AutoGPTQ writes zeros for Linears that have no bias
        if self.bias is None:
            self.bias = torch.zeros(self.out_features, dtype=self.spec.dtype, device=self.spec.device)
        self.bias[part.start : part.start + part.size].copy_(tensor)


def _laid_out(parts: tuple[tuple[str, int], ...]) -> Iterator[Part]:
    start = 0
    for name, size in parts:
        yield Part(name, start, size)
        start += size
