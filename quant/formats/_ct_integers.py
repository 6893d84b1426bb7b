"""Integer weights of compressed-tensors: int8 tensors, or fields packed into words, with scales and zero points.

W = (q - zero) * scale, q and zero between -2^(bits-1) and 2^(bits-1) - 1. Packed ones are stored plus 2^(bits-1), q
along the inputs, zero along the outputs. Up to version 0.17 a word held 32 // bits whole fields; since then they are a
dense stream. Source: compressed-tensors, compressors/pack_quantized/ and naive_quantized/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ...kernels.ops.fields import unpack_fields
from ...kernels.ops.grouped import GroupedWeight, Groups
from ..activations import Rounding, Static8, ToIntegers
from ..base import FLOATS, LinearMethod, LinearShape, Stored, TensorSpec
from ..matrix import GroupedMatrix, Int8Matrix, Matrix
from ._blocks import finite
from ._ct_schemes import PACKED, Scheme

FIRST_DENSE = (0, 18)  # the version that packs densely; heeded only where the shape leaves it open
KEPT_IN = {7: 8}  # bits of a code in GroupedWeight, where there are none of its own


@dataclass(frozen=True, slots=True)
class Header:
    """The checkpoint as its header has it, and the version of the tool that wrote it."""

    stored: Mapping[str, Stored]
    version: tuple[int, ...] | None

    def of(self, name: str) -> Stored | None:
        return self.stored.get(name)


class IntegerMethod(LinearMethod):
    """`weight` int8 [N, K], or `weight_packed` int32 [N, words]; `weight_scale`, and what else the scheme says."""

    def __init__(self, name: str, scheme: Scheme, header: Header) -> None:
        super().__init__(name)
        self._scheme = scheme
        self._header = header
        self._bits = scheme.weights.bits
        self._middle = 1 << (self._bits - 1)

    def tensors(self, shape: LinearShape) -> dict[str, TensorSpec]:
        n, k = shape.out_features, shape.in_features
        specs = {}
        if self._scheme.layout == PACKED:
            words = self._words(k, self._padded(shape))
            specs["weight_packed"] = TensorSpec(
                (n, words), (torch.int32,), out_axis=0, in_axis=1, pack=32 // self._bits
            )
            specs["weight_shape"] = TensorSpec((2,), (torch.int64, torch.int32))
        else:
            specs["weight"] = TensorSpec((n, k), (torch.int8,), out_axis=0, in_axis=1)
        specs["weight_scale"] = self._scheme.blocks.spec(shape, self._found("weight_scale"), FLOATS)
        if not self._scheme.weights.symmetric or self._found("weight_zero_point"):
            specs["weight_zero_point"] = self._zeros_spec(shape)
        if self._scheme.weights.ordered or self._found("weight_g_idx"):
            specs["weight_g_idx"] = TensorSpec((k,), (torch.int32, torch.int64), in_axis=0)
        return specs | self._scheme.inputs.tensors()

    def read(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Matrix:
        codes = self._codes(tensors, shape)
        scales = finite(tensors["weight_scale"], f"{self.name}.weight_scale")
        rounding = self._scheme.inputs.read(tensors, self.name)
        zeros = self._zeros(tensors, shape)
        rows = _rows_of_int8(rounding)
        per_output = self._scheme.blocks.columns is None
        if rows is not None and self._bits == 8 and isinstance(zeros, int) and per_output:
            data = codes.bitwise_xor_(128).view(torch.int8)
            return Int8Matrix(data, self._scheme.blocks.per_group(scales, shape)[0], *rows)
        bits, group = KEPT_IN.get(self._bits, self._bits), self._scheme.blocks.group(shape)
        n, k = codes.shape
        groups = Groups(self._scheme.blocks.per_group(scales, shape))
        weight = GroupedWeight((codes,), "codes", n, k, bits, group, groups, zeros)
        if "weight_g_idx" in tensors:
            weight = _ordered(weight, tensors["weight_g_idx"].long(), f"{self.name}.weight_g_idx")
        return GroupedMatrix(weight, rounding)

    def describe(self) -> str:
        kind = "" if self._scheme.weights.symmetric else ", zero points"
        order = ", act order" if self._scheme.weights.ordered or self._found("weight_g_idx") else ""
        return f"int{self._bits}, {self._scheme.blocks.describe()}{kind}{order}, {self._scheme.inputs.words}"

    def weight_bytes(self, shape: LinearShape) -> int:
        n, k = shape.out_features, shape.in_features
        num_groups = self._scheme.blocks.counts(shape)[1]
        found = self._found("weight_scale")
        size = found.dtype.itemsize if found is not None and isinstance(found.dtype, torch.dtype) else 2
        zeros = 0 if self._scheme.weights.symmetric else n * num_groups
        return n * k * KEPT_IN.get(self._bits, self._bits) // 8 + n * num_groups * size + zeros

    def _found(self, suffix: str) -> Stored | None:
        return self._header.of(f"{self.name}.{suffix}")

    def _words(self, count: int, padded: bool) -> int:
        return -(-count // (32 // self._bits)) if padded else -(-count * self._bits // 32)

    def _padded(self, shape: LinearShape) -> bool:
        """Whether words hold whole fields only: as the shapes say, and where they fit both, as the version does."""
        found = self._found("weight_packed"), self._found("weight_zero_point")
        for stored, axis, count in zip(found, (1, 0), (shape.in_features, shape.out_features), strict=True):
            either = self._words(count, True), self._words(count, False)
            if stored is not None and len(stored.shape) == 2 and either[0] != either[1]:
                return stored.shape[axis] == either[0]
        return self._header.version is not None and self._header.version < FIRST_DENSE

    def _zeros_are_packed(self) -> bool:
        found = self._found("weight_zero_point")
        return self._scheme.layout == PACKED and (found is None or found.dtype == torch.int32)

    def _zeros_spec(self, shape: LinearShape) -> TensorSpec:
        found = self._found("weight_zero_point")
        if not self._zeros_are_packed():
            spec = self._scheme.blocks.spec(shape, found, FLOATS)
            return replace(spec, dtypes=(torch.int8,))
        rows = self._words(shape.out_features, self._padded(shape))
        size = (rows, self._scheme.blocks.counts(shape)[1])
        return TensorSpec(size, (torch.int32,), out_axis=0, in_axis=1, pack=32 // self._bits)

    def _codes(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Tensor:
        """q + 2^(bits-1): a new uint8 [N, K]."""
        if self._scheme.layout == PACKED:
            said, size = tensors["weight_shape"].tolist(), [shape.out_features, shape.in_features]
            if said != size:
                raise Unsupported(f"{self.name}.weight_shape is {said}, the config's matrix {size}", param="model")
            return self._fields(tensors["weight_packed"], shape.in_features, self._padded(shape))
        return self._shifted(tensors["weight"], "weight")

    def _zeros(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Tensor | int:
        """uint8 [G, N], or the one that all have."""
        stored = tensors.get("weight_zero_point")
        if stored is None:
            return self._middle
        if self._zeros_are_packed():
            found = self._fields(stored.t(), shape.out_features, self._padded(shape)).contiguous()
        else:
            found = self._scheme.blocks.per_group(self._shifted(stored, "weight_zero_point"), shape)
        if self._scheme.weights.symmetric and (found == self._middle).all():
            return self._middle  # older versions write them all the same
        return found

    def _fields(self, words: Tensor, count: int, padded: bool) -> Tensor:
        if not padded:
            return unpack_fields(words, self._bits, count)
        return unpack_fields(words.reshape(-1, 1), self._bits, 32 // self._bits).view(len(words), -1)[:, :count]

    def _shifted(self, integers: Tensor, suffix: str) -> Tensor:
        """Integers between -2^(bits-1) and 2^(bits-1) - 1 as codes; raises Unsupported for others."""
        codes = integers.view(torch.uint8) + self._middle  # modulo 256, which is what is wanted
        if self._bits < 8 and bool(codes.amax() >> self._bits):
            raise Unsupported(f"{self.name}.{suffix} holds integers of more than {self._bits} bits", param="model")
        return codes


def _rows_of_int8(rounding: Rounding) -> tuple[Static8 | None, bool] | None:
    """How rows become int8, as Int8Matrix has it; None when they become something else."""
    if isinstance(rounding, Static8):
        return rounding, True
    if isinstance(rounding, ToIntegers) and (rounding.bits, rounding.group) == (8, None):
        return None, rounding.symmetric
    return None


def _ordered(weight: GroupedWeight, groups: Tensor, name: str) -> GroupedWeight:
    """The weight whose input k is in group groups[k] [K] int64, with its codes sorted by group; -1 = in order."""
    filled = torch.arange(weight.k) // weight.group
    if (groups == -1).any() or torch.equal(groups, filled):
        return weight
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups[order], filled):
        raise Unsupported(
            f"{name} does not put {weight.group} inputs into each of {weight.num_groups} groups", param="model"
        )
    return replace(weight, planes=(weight.planes[0][:, order],), order=order)
