"""How the weights of a checkpoint are stored: which tensors hold a matrix, along which axes, and what they mean.

It knows shapes and dtypes, and refuses to know networks, ranks and adapters. A format turns the tensors of ONE matrix
of the checkpoint into a Matrix (matrix.py); fusing matrices and multiplying by them is the same for all formats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .matrix import Matrix

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class LinearShape:
    """One matrix of the checkpoint: x[T, in_features] -> y[T, out_features] in `dtype`."""

    in_features: int
    out_features: int
    dtype: torch.dtype
    only_rows: bool = False  # are read, as of a table of vectors: a plain one is not packed


@dataclass(frozen=True, slots=True)
class Stored:
    """What a checkpoint's header says of one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype | str  # a torch dtype, or a GGUF type by its name ("Q4_K")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor that a checkpoint holds for a matrix, in any of `dtypes` (as Stored has them).

    `out_axis` and `in_axis` are the dimensions that run along the matrix's outputs and inputs, None where there is no
    such dimension; one step along a packed dimension is `pack` values.
    """

    shape: tuple[int, ...]
    dtypes: tuple[torch.dtype | str, ...] = FLOATS
    out_axis: int | None = None
    in_axis: int | None = None
    pack: int = 1


class LinearMethod(ABC):
    """How one matrix is stored. `name` is its module path in the checkpoint, for messages."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def tensors(self, shape: LinearShape) -> dict[str, TensorSpec]:
        """What the checkpoint must hold for a matrix of `shape`, by the name behind the module's path.

        Raises Unsupported, naming module and field, for a shape that the format cannot have.
        """

    @abstractmethod
    def read(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Matrix:
        """The matrix that those tensors mean. Both may lie in the file's memory, until the matrix is packed.

        Raises Unsupported, naming the tensor, for contents that mean no matrix.
        """

    @abstractmethod
    def describe(self) -> str:
        """One line in words: `GPTQ 4 bit, group 64, symmetric, act order`."""

    @abstractmethod
    def weight_bytes(self, shape: LinearShape) -> int:
        """Bytes that the matrix will take once it is packed, by the shape alone."""


class QuantFormat(ABC):
    """A family of checkpoints: which matrix is stored by which method."""

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, config: Mapping[str, Any], stored: Mapping[str, Stored]) -> QuantFormat:
        """Read a checkpoint's quantization_config, with the whole header `stored` at hand.

        Raises Unsupported, naming the field, for what cannot be served.
        """

    @abstractmethod
    def linear(self, name: str, shape: LinearShape) -> LinearMethod:
        """The method of the matrix at module path `name`; also asked for the token embedding and the head.

        Raises Unsupported, naming the module, when what is stored contradicts the config.
        """

    def kv_scales(self, path: str) -> Mapping[str, str]:
        """Tensors that hold the scale of an FP8 KV cache for the attention at module path `path`.

        From `k` and `v` to the checkpoint's names; empty where the cache is not quantised.
        """
        return {}

    def has_bias(self, name: str) -> bool:
        """Whether the checkpoint holds a bias for the module `name` though its architecture may have none."""
        return False

    def ignores(self, tensor: str) -> bool:
        """Whether a tensor that no layer asks for belongs to the format all the same, and says nothing."""
        return False
