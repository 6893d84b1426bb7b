"""How the weight of a Linear is stored: which tensors a checkpoint holds for it, along which axes, how it multiplies.

It knows shapes and dtypes, and refuses to know networks, ranks and adapters. The format says the axes, a Linear slices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearShape:
    """One matrix of the checkpoint: x[T, in_features] -> y[T, out_features] in `dtype`."""

    in_features: int
    out_features: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor that a checkpoint holds for a matrix.

    `out_axis` and `in_axis` are the dimensions that run along the matrix's outputs and inputs, None where there is no
    such dimension; one step along a packed dimension is `pack` values.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    out_axis: int | None
    in_axis: int | None
    pack: int = 1


class StoredWeight(Protocol):
    """What a method sees of a Linear."""

    tensors: dict[str, Tensor]  # as the checkpoint has them, by TensorSpec name; emptied by prepare
    packed: Any  # whatever prepare makes of them; only the method reads it


class LinearMethod(ABC):
    """The weight of one Linear in one format. A fused Linear's parts lie one after the other along `out_axis`."""

    @abstractmethod
    def tensors(self, shape: LinearShape) -> dict[str, TensorSpec]:
        """What the checkpoint must hold for a matrix of `shape`, by the name behind the module's path."""

    @abstractmethod
    def prepare(self, layer: StoredWeight) -> None:
        """Turn the checkpoint's tensors into the form that `apply` reads, once, when all are there."""

    @abstractmethod
    def apply(self, layer: StoredWeight, x: Tensor) -> Tensor:
        """x[T, in] times the transposed weight: [T, out], no bias."""

    @abstractmethod
    def nbytes(self, layer: StoredWeight) -> int:
        """Bytes that the prepared weight takes."""


class QuantFormat(ABC):
    """A family of checkpoints: which Linear is stored by which method."""

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> QuantFormat:
        """Read a checkpoint's quantization_config; raises Unsupported, naming the field, for what cannot be served."""

    @abstractmethod
    def linear(self, name: str, shape: LinearShape) -> LinearMethod:
        """The method of the Linear at module path `name` (of a fused one: its first part)."""
