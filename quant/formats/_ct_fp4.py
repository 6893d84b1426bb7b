"""e2m1 weights of compressed-tensors, NVFP4 and MXFP4: kept as codes of 4 bits and a table, which is exact.

NVFP4: W = e2m1 * weight_scale / weight_global_scale, with an e4m3 scale for each 16 inputs. MXFP4: W = e2m1 *
2^(weight_scale - 127), with an exponent for each 32. The even input is in a byte's low half.
Source: compressed-tensors, compressors/nvfp4/ and mxfp4/.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ...kernels.ops.fields import unpack_fields
from ...kernels.ops.grouped import GroupedWeight, Groups
from ..base import LinearMethod, LinearShape, Stored, TensorSpec
from ..matrix import GroupedMatrix, Matrix
from ._blocks import positive
from ._ct_schemes import NVFP4, Scheme
from ._float8 import EXPONENTS, no_nan, scales_of
from ._inputs import must_be_zero
from ._microscaling import E2M1

TABLE = torch.tensor([*E2M1, *(-value for value in E2M1)])


class Fp4Method(LinearMethod):
    """`weight_packed` U8 [N, K / 2] and `weight_scale` [N, G]; NVFP4 has one `weight_global_scale` besides."""

    def __init__(self, name: str, scheme: Scheme, stored: Mapping[str, Stored]) -> None:
        super().__init__(name)
        self._scheme = scheme
        self._is_nvfp4 = scheme.layout == NVFP4
        self._zeros = stored.get(f"{name}.weight_zero_point")

    def tensors(self, shape: LinearShape) -> dict[str, TensorSpec]:
        n, k = shape.out_features, shape.in_features
        if k % 2:
            raise Unsupported(f"{self.name} has {k} inputs; {self._scheme.layout} packs two of them", param="model")
        specs = {
            "weight_packed": TensorSpec((n, k // 2), (torch.uint8,), out_axis=0, in_axis=1, pack=2),
            "weight_scale": self._scheme.blocks.spec(
                shape, None, (torch.float8_e4m3fn,) if self._is_nvfp4 else EXPONENTS
            ),
        }
        if self._is_nvfp4:
            specs["weight_global_scale"] = TensorSpec((1,), (torch.float32,))
        if self._zeros is not None and isinstance(self._zeros.dtype, torch.dtype):
            specs["weight_zero_point"] = TensorSpec(self._zeros.shape, (self._zeros.dtype,))
        return specs | self._scheme.inputs.tensors()

    def read(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Matrix:
        if "weight_zero_point" in tensors:
            must_be_zero(tensors["weight_zero_point"], f"{self.name}.weight_zero_point")
        n, k = shape.out_features, shape.in_features
        packed = tensors["weight_packed"]
        codes = unpack_fields(torch.nn.functional.pad(packed, (0, -packed.shape[1] % 4)).view(torch.int32), 4, k)
        groups = (self._nv_groups if self._is_nvfp4 else self._mx_groups)(tensors, shape)
        group = self._scheme.blocks.group(shape)
        weight = GroupedWeight((codes,), "codes", n, k, 4, group, groups, values="table", table=TABLE)
        return GroupedMatrix(weight, self._scheme.inputs.read(tensors, self.name))

    def describe(self) -> str:
        kind = "nvfp4" if self._is_nvfp4 else "mxfp4"
        return f"{kind} (e2m1), {self._scheme.blocks.describe()}, {self._scheme.inputs.words}"

    def weight_bytes(self, shape: LinearShape) -> int:
        n, k = shape.out_features, shape.in_features
        return n * k // 2 + 2 * n * self._scheme.blocks.counts(shape)[1] + (4 * n if self._is_nvfp4 else 0)

    def _mx_groups(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Groups:
        scales = scales_of(tensors["weight_scale"], f"{self.name}.weight_scale")
        return Groups(self._scheme.blocks.per_group(scales, shape))

    def _nv_groups(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Groups:
        """e4m3 scales fit float16; what divides them all is the coarse level."""
        no_nan(tensors["weight_scale"].view(torch.uint8), f"{self.name}.weight_scale")
        fine = self._scheme.blocks.per_group(tensors["weight_scale"].half(), shape)
        over = positive(tensors["weight_global_scale"], f"{self.name}.weight_global_scale")
        return Groups(fine, torch.full((1, shape.out_features), 1 / over), span=len(fine))
