"""Inputs of 4 and 8 bits whose groups' scales are small numbers themselves: MXFP4, MXFP8 and NVFP4, read back.

The arithmetic is that of compressed-tensors (quantization/utils/helpers.py, mxfp_utils.py, fp4_utils.py). Microscaling:
Open Compute Project, OCP Microscaling Formats (MX) Specification 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.ops.rounding import E4M3_MAX
from ..activations import Rounding
from ..base import TensorSpec
from ._blocks import positive

E2M1_MAX = 6.0
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # and their negatives
MX_GROUP, NV_GROUP = 32, 16
HIGHEST = {4: 2, 8: 8}  # the exponent of the largest e2m1 and e4m3
BIAS = 127
LEAST = 0.125  # what stands for a scale of 0 in NVFP4


def to_e2m1(x: Tensor) -> Tensor:
    """The nearest number of E2M1, half to even; what is larger becomes the largest."""
    size = x.abs().clamp(max=E2M1_MAX)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.round(size / step) * step * x.sign()


def to_e4m3(x: Tensor) -> Tensor:
    """The nearest number of E4M3; what is larger becomes the largest."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()


def _by_group(x: Tensor, group: int, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    """x[T, K] in its own dtype, each `group` inputs [T, G, group] float32 replaced by what they are `rounded` to."""
    groups = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % group)).view(len(x), -1, group)
    return rounded(groups).flatten(1)[:, : x.shape[1]].to(x.dtype)


@dataclass(frozen=True, slots=True)
class ToMicroscaled:
    """To e2m1 or e4m3 under a power of 2 for each 32 inputs of a row."""

    bits: int

    def __call__(self, x: Tensor) -> Tensor:
        return _by_group(x, MX_GROUP, self._rounded)

    def on(self, device: torch.device) -> ToMicroscaled:
        return self

    def _rounded(self, groups: Tensor) -> Tensor:
        largest = groups.abs().amax(-1, keepdim=True)
        up_from_7_4ths = largest.view(torch.int32) + (1 << 21)  # to the next power of 2
        exponents = ((up_from_7_4ths >> 23) - HIGHEST[self.bits] - BIAS).clamp(min=-BIAS)
        scales = torch.exp2(exponents.float())
        return (to_e2m1 if self.bits == 4 else to_e4m3)(groups / scales) * scales


@dataclass(frozen=True, slots=True)
class ToNvfp4:
    """To e2m1 under an e4m3 scale for each 16 inputs of a row, which `over` divides."""

    over: float

    def __call__(self, x: Tensor) -> Tensor:
        return _by_group(x, NV_GROUP, self._rounded)

    def on(self, device: torch.device) -> ToNvfp4:
        return self

    def _rounded(self, groups: Tensor) -> Tensor:
        scales = to_e4m3(groups.abs().amax(-1, keepdim=True) / E2M1_MAX * self.over)
        scales = torch.where(scales == 0, LEAST, scales) / self.over
        return to_e2m1(groups / scales) * scales


@dataclass(frozen=True, slots=True)
class NvInputs:
    """NVFP4 inputs: their global scale is calibrated."""

    words: str = "nvfp4 inputs"

    def tensors(self) -> dict[str, TensorSpec]:
        return {"input_global_scale": TensorSpec((1,), (torch.float32,))}

    def read(self, tensors: Mapping[str, Tensor], name: str) -> Rounding:
        return ToNvfp4(positive(tensors["input_global_scale"], f"{name}.input_global_scale"))
