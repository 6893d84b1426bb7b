"""GPTQ: integers of 2, 3, 4 or 8 bits down the inputs, a scale and a zero point for each group, perhaps in act order.

Source: AutoGPTQ's auto_gptq/nn_modules/qlinear, GPTQModel's gptqmodel/nn_modules/qlinear and quantization/config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ...kernels.ops.fields import unpack_fields
from ...kernels.ops.grouped import GroupedWeight, Groups
from ..base import LinearMethod, LinearShape, QuantFormat, Stored, TensorSpec
from ..matrix import GroupedMatrix, Matrix
from ._config import Fields, fields_of
from ._packed import PackedFormat, Size, check_activations, finite, group_of, one_or_all, scale_bytes
from ._zero_points import Losses, zero_points

BITS = (2, 3, 4, 8)
WHOLE = {2: 16, 3: 32, 4: 8, 8: 4}  # values that fill whole words
LESS_ONE = {"gptq": True, "gptq_v2": False}  # checkpoint_format -> how zero points are stored
LOSSLESS = ("gptqmodel", "auto-round")  # tools that take ones from whole words


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one module is packed."""

    bits: int
    group: int  # -1 = one group
    symmetric: bool | None
    act_order: bool
    less_one: bool  # zero points are stored less one
    lossy: bool  # by a tool that may have lost some of them


def _scheme(fields: Fields) -> Scheme:
    bits, group = fields.integer("bits"), fields.integer("group_size")
    if bits not in BITS:
        raise fields.refusal("bits", f"is {bits}; GPTQ is read with {', '.join(map(str, BITS))}")
    if group != -1 and group < 1:
        raise fields.refusal("group_size", f"is {group}; it must be -1 (all inputs) or above 0")
    layout = fields.word("checkpoint_format", "gptq")
    if fields.flag("is_marlin_format"):
        layout = "marlin"
    if layout not in LESS_ONE:
        raise fields.refusal("checkpoint_format", f"is {layout!r}; {' and '.join(LESS_ONE)} are read")
    if fields.word("pack_dtype", "int32") != "int32":
        raise fields.refusal("pack_dtype", f"is {fields.values['pack_dtype']!r}; int32 is read")
    check_activations(fields)
    act_order = bool(fields.flag("desc_act"))
    return Scheme(bits, group, fields.flag("sym"), act_order, LESS_ONE[layout], not _is_lossless(fields))


def _is_lossless(fields: Fields) -> bool:
    meta = fields.values.get("meta")
    told = str(meta.get("quantizer")).lower() if isinstance(meta, Mapping) else ""
    return any(tool in told for tool in LOSSLESS)


class GptqMethod(LinearMethod):
    """`qweight`, `qzeros`, `scales`, and `g_idx` where it is stored or the inputs are in act order."""

    def __init__(self, name: str, scheme: Scheme, stored: Mapping[str, Stored], losses: Losses) -> None:
        super().__init__(name)
        self.scheme = scheme
        self._has_index = f"{name}.g_idx" in stored
        self._scale_bytes = scale_bytes(stored, name)
        self._losses = losses

    def tensors(self, shape: LinearShape) -> dict[str, TensorSpec]:
        bits, n, k = self.scheme.bits, shape.out_features, shape.in_features
        for what, count in (("inputs", k), ("outputs", n)):
            if count % WHOLE[bits]:
                raise Unsupported(
                    f"{self.name}: {count} {what} of {bits} bits; GPTQ packs multiples of {WHOLE[bits]}",
                    param="model",
                )
        groups, pack = -(-k // group_of(self.scheme.group, k)), 1 if bits == 3 else 32 // bits
        found = {
            "qweight": TensorSpec((k * bits // 32, n), (torch.int32,), out_axis=1, in_axis=0, pack=pack),
            "qzeros": TensorSpec((groups, n * bits // 32), (torch.int32,), out_axis=1, pack=pack),
            "scales": TensorSpec((groups, n), out_axis=1),
        }
        if self._has_index or (self.scheme.act_order and groups > 1):
            found["g_idx"] = TensorSpec((k,), (torch.int32, torch.int64), in_axis=0)
        return found

    def read(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Matrix:
        bits, group = self.scheme.bits, group_of(self.scheme.group, shape.in_features)
        order = self._order(tensors["g_idx"], group) if "g_idx" in tensors else None
        scales = finite(tensors["scales"], f"{self.name}.scales")
        zeros = self._zeros(tensors["qzeros"], shape)
        codes = unpack_fields(tensors["qweight"].t(), bits, shape.in_features)  # [N, K]
        codes = codes if order is None else _sorted(codes, order)
        n, k = codes.shape
        return GroupedMatrix(GroupedWeight((codes,), "codes", n, k, bits, group, Groups(scales), zeros, order=order))

    def describe(self) -> str:
        scheme = self.scheme
        group = "one group" if scheme.group == -1 else f"group {scheme.group}"
        kind = {True: "symmetric", False: "asymmetric", None: "zero points as stored"}[scheme.symmetric]
        return f"GPTQ {scheme.bits} bit, {group}, {kind}{', act order' if scheme.act_order else ''}"

    def weight_bytes(self, shape: LinearShape) -> int:
        scheme, group = self.scheme, group_of(self.scheme.group, shape.in_features)
        order = scheme.act_order and group < shape.in_features
        return Size(scheme.bits, group, self._scale_bytes, scheme.symmetric is not True, order).of(shape)

    def _order(self, index: Tensor, group: int) -> Tensor | None:
        """The inputs sorted by their group; None where they lie so already."""
        inputs = torch.arange(len(index))
        in_turn = inputs // group
        groups = int(in_turn[-1]) + 1
        found = index.long()
        if torch.equal(found, in_turn) or (not self.scheme.act_order and not found.any()):
            return None  # before act order existed, tools wrote zeros
        strays = inputs[(found < 0) | (found >= groups)]
        if len(strays):
            at = int(strays[0])
            raise Unsupported(
                f"{self.name}.g_idx: input {at} is in group {int(found[at])}; there are 0 to {groups - 1}",
                param="model",
            )
        sizes, wanted = torch.bincount(found, minlength=groups), torch.bincount(in_turn)
        if not torch.equal(sizes, wanted):
            at = int((sizes != wanted).nonzero()[0])
            raise Unsupported(
                f"{self.name}.g_idx: group {at} holds {int(sizes[at])} inputs instead of {int(wanted[at])}",
                param="model",
            )
        return torch.argsort(found, stable=True)

    def _zeros(self, qzeros: Tensor, shape: LinearShape) -> Tensor | int:
        scheme = self.scheme
        each, lost = zero_points(qzeros, scheme.bits, shape.out_features, less_one=scheme.less_one, lossy=scheme.lossy)
        self._losses.note(self.name, lost)
        zeros, middle = one_or_all(each), 1 << (scheme.bits - 1)
        if scheme.symmetric and isinstance(zeros, int) and zeros != middle:
            raise Unsupported(
                f"{self.name}.qzeros mean {zeros} by the config's checkpoint_format; sym true makes them {middle} in "
                f"{scheme.bits} bits: one of the two is wrong",
                param="model",
            )
        return zeros


def _sorted(codes: Tensor, order: Tensor) -> Tensor:
    """Inputs of codes [N, K] in another order. (codes[:, order] takes 4 to 15 times as long.)"""
    by_input = codes.t()
    return by_input[order].t() if by_input.is_contiguous() else codes.gather(1, order.expand(codes.shape))


class Gptq(PackedFormat):
    """A GPTQ checkpoint."""

    def __init__(self, fields: Fields, stored: Mapping[str, Stored]) -> None:
        super().__init__(fields, stored)
        self._losses = Losses()

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], stored: Mapping[str, Stored]) -> QuantFormat:
        return cls(fields_of(config), stored)

    def _check(self, fields: Fields) -> None:
        _scheme(fields)

    def _method(self, name: str, fields: Fields) -> LinearMethod:
        self._losses.expect()
        return GptqMethod(name, _scheme(fields), self._stored, self._losses)


EXPORT = Gptq
