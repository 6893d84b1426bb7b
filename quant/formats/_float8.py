"""A weight of e4m3 bytes under scales of any blocks: what DeepSeek's fp8, AutoFP8's and compressed-tensors' share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ...kernels.ops.grouped import GroupedWeight, Groups
from ..base import FLOATS, LinearMethod, LinearShape, Stored, TensorSpec
from ..matrix import GroupedMatrix, Matrix
from ._blocks import Blocks, finite
from ._inputs import Inputs, must_be_zero

EXPONENTS = (torch.float8_e8m0fnu, torch.uint8)  # a scale that is a power of 2, as its biased exponent
NAN = 0x7F  # of e4m3, whatever its sign bit
CHECKED = 1 << 22  # bytes looked at at a time


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of a weight: the tensor's name, what one of them is for, and the types they may have."""

    name: str
    blocks: Blocks
    dtypes: tuple[torch.dtype, ...] = (*FLOATS, torch.float8_e8m0fnu)


class Float8Method(LinearMethod):
    """`weight` F8_E4M3 [N, K], times its scales; `stored` is the checkpoint's header."""

    def __init__(self, name: str, scales: Scales, inputs: Inputs, stored: Mapping[str, Stored]) -> None:
        super().__init__(name)
        self._scales = scales
        self._inputs = inputs
        self._stored = stored

    def tensors(self, shape: LinearShape) -> dict[str, TensorSpec]:
        size = (shape.out_features, shape.in_features)
        scales, zeros = self._scales, self._stored.get(f"{self.name}.weight_zero_point")
        found = self._stored.get(f"{self.name}.{scales.name}")
        specs = {
            "weight": TensorSpec(size, (torch.float8_e4m3fn,), out_axis=0, in_axis=1),
            scales.name: scales.blocks.spec(shape, found, scales.dtypes),
            **self._inputs.tensors(),
        }
        if zeros is not None and isinstance(zeros.dtype, torch.dtype):
            specs["weight_zero_point"] = TensorSpec(zeros.shape, (zeros.dtype,))
        return specs

    def read(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Matrix:
        if "weight_zero_point" in tensors:
            must_be_zero(tensors["weight_zero_point"], f"{self.name}.weight_zero_point")
        codes = tensors["weight"].view(torch.uint8)
        no_nan(codes, f"{self.name}.weight")
        scales = scales_of(tensors[self._scales.name], f"{self.name}.{self._scales.name}")
        blocks = self._scales.blocks
        groups = Groups(blocks.per_group(scales, shape))
        n, k = codes.shape
        weight = GroupedWeight((codes,), "codes", n, k, 8, blocks.group(shape), groups, values="e4m3")
        return GroupedMatrix(weight, self._inputs.read(tensors, self.name))

    def describe(self) -> str:
        return f"fp8 (e4m3), {self._scales.blocks.describe()}, {self._inputs.words}"

    def weight_bytes(self, shape: LinearShape) -> int:
        found = self._stored.get(f"{self.name}.{self._scales.name}")
        exponents = found is not None and found.dtype in EXPONENTS
        size = 2 if exponents or found is None or isinstance(found.dtype, str) else found.dtype.itemsize
        num_groups = self._scales.blocks.counts(shape)[1]
        return shape.out_features * (shape.in_features + num_groups * size)


def scales_of(stored: Tensor, name: str) -> Tensor:
    """Scales in the type they are stored in, exponents as bfloat16; raises Unsupported for what is no number."""
    if stored.dtype in EXPONENTS:
        stored = stored.view(torch.float8_e8m0fnu).to(torch.bfloat16)
    return finite(stored, name)


def no_nan(codes: Tensor, name: str) -> None:
    """Raises Unsupported, naming the tensor, when one of its e4m3 bytes is no number."""
    step = max(1, CHECKED // max(1, codes.shape[1]))
    if any(((codes[at : at + step] & NAN) == NAN).any() for at in range(0, len(codes), step)):
        raise Unsupported(f"{name} holds NaN", param="model")
