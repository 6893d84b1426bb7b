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

from ...quant.base import LinearShape, QuantFormat, TensorSpec
from ..batch import ForwardBatch
from ..parallel import Ranks
from ..wanted import Wanted


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

    def add_(self, y: Tensor, x: Tensor, rows: Any) -> None:
        """y[T, out] += each row's own update of x[T, in], in place."""


class Linear:
    """y = method(x) + delta(x), joined over the ranks, + bias.

    Owns the checkpoint's tensors while they arrive; when the last one is there the method packs them.
    """

    def __init__(self, spec: LinearSpec, quant: QuantFormat, ranks: Ranks) -> None:
        self.spec = spec
        self.ranks = ranks
        self.in_features = spec.in_features
        self.parts = tuple(_laid_out(spec.parts))
        self.out_features = sum(part.size for part in self.parts)
        self.method = quant.linear(self.parts[0].name, self._shape(self.out_features))
        self.delta: Delta | None = None
        self.bias: Tensor | None = None
        self.tensors: dict[str, Tensor] = {}
        self.packed: Any = None
        self._num_awaited = len(self.parts) * len(self.method.tensors(self._shape(self.out_features)))

    def __call__(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """x[T, in_features] -> [T, out_features]."""
        y = self.method.apply(self, x)
        if self.delta is not None:
            self.delta.add_(y, x, batch.rows)
        return self.join(y)

    def join(self, y: Tensor) -> Tensor:
        """Sum the ranks' partial results where the inputs are split, then add the bias once."""
        if self.spec.splits_inputs:
            y = self.ranks.reduce(y)
        return y if self.bias is None else y.add_(self.bias)

    def wanted(self) -> Iterator[tuple[str, Wanted]]:
        """(checkpoint name, what is wanted) of every tensor of every part."""
        for part in self.parts:
            for name, spec in self.method.tensors(self._shape(part.size)).items():
                yield f"{part.name}.{name}", Wanted(spec.shape, partial(self._put, name, spec, part))
            if self.spec.bias:
                yield f"{part.name}.bias", Wanted((part.size,), partial(self._put_bias, part))

    def nbytes(self) -> int:
        """Bytes of weight and bias, as they are kept."""
        return self.method.nbytes(self) + (0 if self.bias is None else self.bias.nbytes)

    def _shape(self, out_features: int) -> LinearShape:
        return LinearShape(self.spec.in_features, out_features, self.spec.dtype)

    def _put(self, name: str, spec: TensorSpec, part: Part, tensor: Tensor) -> None:
        if name not in self.tensors:
            whole = self.method.tensors(self._shape(self.out_features))[name]
            self.tensors[name] = torch.empty(whole.shape, dtype=whole.dtype, device=self.spec.device)
        home = self.tensors[name]
        if spec.out_axis is not None:
            home = home.narrow(spec.out_axis, part.start // spec.pack, spec.shape[spec.out_axis])
        home.copy_(self.ranks.shard(tensor, spec.in_axis if self.spec.splits_inputs else spec.out_axis))
        self._num_awaited -= 1
        if self._num_awaited == 0:
            self.method.prepare(self)

    def _put_bias(self, part: Part, tensor: Tensor) -> None:
        if self.bias is None:
            self.bias = torch.empty(self.out_features, dtype=self.spec.dtype, device=self.spec.device)
        self.bias[part.start : part.start + part.size].copy_(
            self.ranks.shard(tensor, None if self.spec.splits_inputs else 0)
        )


def _laid_out(parts: tuple[tuple[str, int], ...]) -> Iterator[Part]:
    start = 0
    for name, size in parts:
        yield Part(name, start, size)
        start += size
