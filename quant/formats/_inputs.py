"""How a quantised matrix's inputs are rounded: not at all, by each row's own scale, or by one of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ..activations import AsTheyAre, Rounding, Static8, StaticE4M3
from ..base import FLOATS, TensorSpec
from ._blocks import positive


class Inputs(Protocol):
    """What a checkpoint says of a matrix's inputs."""

    @property
    def words(self) -> str: ...

    def tensors(self) -> dict[str, TensorSpec]:
        """What the checkpoint holds for them."""

    def read(self, tensors: Mapping[str, Tensor], name: str) -> Rounding:
        """The rounding that those tensors of the module `name` mean."""


@dataclass(frozen=True, slots=True)
class Ruled:
    """A rounding that needs no tensors."""

    words: str
    rounding: Rounding

    def tensors(self) -> dict[str, TensorSpec]:
        return {}

    def read(self, tensors: Mapping[str, Tensor], name: str) -> Rounding:
        return self.rounding


UNTOUCHED = Ruled("16-bit inputs", AsTheyAre())


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One scale for all inputs, as the tool found it; `zero`: the tensor of the zero point, where there is one."""

    kind: Literal["fp8", "int8"]
    scale: str = "input_scale"
    zero: str | None = None

    @property
    def words(self) -> str:
        return f"static {self.kind} inputs" + (" with a zero point" if self.zero else "")

    def tensors(self) -> dict[str, TensorSpec]:
        number = TensorSpec((1,), FLOATS)
        return {self.scale: number, **({self.zero: TensorSpec((1,), (torch.int8,))} if self.zero else {})}

    def read(self, tensors: Mapping[str, Tensor], name: str) -> Rounding:
        value = positive(tensors[self.scale], f"{name}.{self.scale}")
        if self.kind == "fp8":
            return StaticE4M3(value)
        return Static8(value, int(tensors[self.zero].reshape(())) if self.zero else 0)


def must_be_zero(tensor: Tensor, name: str) -> None:
    """A zero point of a scheme that has none; raises Unsupported, naming the tensor."""
    if tensor.float().any():
        raise Unsupported(f"{name} is not 0 though the quantization_config says symmetric", param="model")
