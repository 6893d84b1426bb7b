"""AWQ: integers of 4 bits with a scale and a zero point for each group, in one of three layouts.

gemm: words along the outputs, eight of them in the order 0 2 4 6 1 3 5 7. gemv: words along the inputs. gemv_fast: four
outputs in a 16-bit word, with scale * zero beside the scales instead of zero points.
Source: AutoAWQ's awq/modules/linear/{gemm,gemv,gemv_fast}.py and awq/utils/packing_utils.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
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

BITS = 4
MIDDLE = 8  # the zero point where there are none
WORD = 32 // BITS
# Words shuffled at a time, so that they stay in a core's cache: 8 ms for 11 million weights, all at once 15.
BLOCK = 1 << 15


class AwqMethod(LinearMethod):
    """What the layouts share."""

    layout: str
    inputs: int  # that fill what the layout cannot cut
    outputs: int

    def __init__(self, name: str, group: int, has_zeros: bool, stored: Mapping[str, Stored]) -> None:
        super().__init__(name)
        self.group = group
        self.has_zeros = has_zeros  # asymmetric
        self.reads_zeros = has_zeros or f"{name}.qzeros" in stored
        self._scale_bytes = scale_bytes(stored, name)

    def tensors(self, shape: LinearShape) -> dict[str, TensorSpec]:
        n, k = shape.out_features, shape.in_features
        needs = (("inputs", k, self.inputs), ("outputs", n, self.outputs), ("inputs", k, group_of(self.group, k)))
        for what, count, divisor in needs:
            if count % divisor:
                raise Unsupported(
                    f"{self.name}: {count} {what} are no multiple of {divisor}, as AWQ {self.layout} of group "
                    f"{self.group} needs them",
                    param="model",
                )
        found = self._specs(n, k, k // group_of(self.group, k))
        return found if self.reads_zeros else {name: spec for name, spec in found.items() if name != "qzeros"}

    def read(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Matrix:
        n, k, group = shape.out_features, shape.in_features, group_of(self.group, shape.in_features)
        scales = Groups(finite(self._by_group(tensors["scales"], k // group), f"{self.name}.scales"))
        zeros, mins = self._zeros(tensors, n, k // group) if self.reads_zeros else (MIDDLE, None)
        codes = self._codes(tensors["qweight"], n, k)
        return GroupedMatrix(GroupedWeight((codes,), "codes", n, k, BITS, group, scales, zeros, mins))

    def describe(self) -> str:
        group = "one group" if self.group == -1 else f"group {self.group}"
        return f"AWQ {BITS} bit, {group}, {'asymmetric' if self.has_zeros else 'symmetric'}, layout {self.layout}"

    def weight_bytes(self, shape: LinearShape) -> int:
        group = group_of(self.group, shape.in_features)
        return Size(BITS, group, self._scale_bytes, zeros=self.has_zeros, order=False).of(shape)

    def _zeros(self, tensors: Mapping[str, Tensor], n: int, groups: int) -> tuple[Tensor | int, Groups | None]:
        zeros = one_or_all(self._zero_points(tensors["qzeros"], n, groups))
        if not self.has_zeros and not (isinstance(zeros, int) and zeros == MIDDLE):
            raise Unsupported(
                f"{self.name}.qzeros are not all {MIDDLE}, as zero_point false in the config makes them", param="model"
            )
        return zeros, None

    @abstractmethod
    def _specs(self, n: int, k: int, groups: int) -> dict[str, TensorSpec]: ...

    @abstractmethod
    def _codes(self, qweight: Tensor, n: int, k: int) -> Tensor:
        """uint8 [N, K]."""

    @abstractmethod
    def _by_group(self, numbers: Tensor, groups: int) -> Tensor:
        """Scales [G, N] out of the layout's."""

    @abstractmethod
    def _zero_points(self, qzeros: Tensor, n: int, groups: int) -> Tensor:
        """uint8 [G, N]."""


class Gemm(AwqMethod):
    """`qweight` [K, N / 8], `qzeros` [G, N / 8], `scales` [G, N]."""

    layout, inputs, outputs = "gemm", 1, WORD

    def _specs(self, n: int, k: int, groups: int) -> dict[str, TensorSpec]:
        return {
            "qweight": TensorSpec((k, n // WORD), (torch.int32,), out_axis=1, in_axis=0, pack=WORD),
            "qzeros": TensorSpec((groups, n // WORD), (torch.int32,), out_axis=1, pack=WORD),
            "scales": TensorSpec((groups, n), out_axis=1),
        }

    def _codes(self, qweight: Tensor, n: int, k: int) -> Tensor:
        return unpack_fields(_in_turn(qweight), BITS, n).t()

    def _by_group(self, numbers: Tensor, groups: int) -> Tensor:
        return numbers

    def _zero_points(self, qzeros: Tensor, n: int, groups: int) -> Tensor:
        return unpack_fields(_in_turn(qzeros), BITS, n)


class Gemv(AwqMethod):
    """`qweight` [N, K / 8], `qzeros` [N, words], `scales` [N, 8 * words], the last words in part zeros."""

    layout, inputs, outputs = "gemv", WORD, WORD

    def _specs(self, n: int, k: int, groups: int) -> dict[str, TensorSpec]:
        words = _zero_words(k, groups)
        return {
            "qweight": TensorSpec((n, k // WORD), (torch.int32,), out_axis=0, in_axis=1, pack=WORD),
            "qzeros": TensorSpec((n, words), (torch.int32,), out_axis=0),
            "scales": TensorSpec((n, words * WORD), out_axis=0),
        }

    def _codes(self, qweight: Tensor, n: int, k: int) -> Tensor:
        return unpack_fields(qweight, BITS, k)

    def _by_group(self, numbers: Tensor, groups: int) -> Tensor:
        return numbers[:, :groups].t()

    def _zero_points(self, qzeros: Tensor, n: int, groups: int) -> Tensor:
        return unpack_fields(qzeros, BITS, groups).t().contiguous()


class GemvFast(AwqMethod):
    """`qweight` int16 [N / 4, K], `scales` and `qzeros` [8 * words, N] float16, the last rows zeros.

    What `qzeros` holds is minus scale times zero point, rounded: a minimum for each group.
    """

    layout, inputs, outputs = "gemv_fast", 64, WORD

    def _specs(self, n: int, k: int, groups: int) -> dict[str, TensorSpec]:
        rows = _zero_words(k, groups) * WORD
        return {
            "qweight": TensorSpec((n // 4, k), (torch.int16,), out_axis=0, in_axis=1, pack=4),
            "qzeros": TensorSpec((rows, n), out_axis=1),
            "scales": TensorSpec((rows, n), out_axis=1),
        }

    def weight_bytes(self, shape: LinearShape) -> int:
        group = group_of(self.group, shape.in_features)
        return Size(BITS, group, self._scale_bytes * (1 + self.reads_zeros), zeros=False, order=False).of(shape)

    def _codes(self, qweight: Tensor, n: int, k: int) -> Tensor:
        """Four outputs share a block of 64 inputs; of 32, pairs are dealt in fours, then even and odd are parted."""
        fields = unpack_fields(qweight.contiguous().view(torch.int32), BITS, 4 * k)
        blocks = fields.view(n // 4, k // 64, 4, 2, 4, 2, 4)  # ..., output, half of the block, pair, parity, four
        return blocks.permute(0, 2, 1, 3, 6, 4, 5).reshape(n, k)

    def _by_group(self, numbers: Tensor, groups: int) -> Tensor:
        return numbers[:groups]

    def _zero_points(self, qzeros: Tensor, n: int, groups: int) -> Tensor:
        raise AssertionError("this layout has minima")

    def _zeros(self, tensors: Mapping[str, Tensor], n: int, groups: int) -> tuple[Tensor | int, Groups | None]:
        return 0, Groups(finite(self._by_group(tensors["qzeros"], groups), f"{self.name}.qzeros"))


LAYOUTS: dict[str, type[AwqMethod]] = {each.layout: each for each in (Gemm, Gemv, GemvFast)}


def _in_turn(words: Tensor) -> Tensor:
    """Words whose fields are outputs 0 2 4 6 1 3 5 7, with their fields as 0 1 2 3 4 5 6 7."""
    found = torch.empty(words.shape, dtype=torch.int32)
    step = max(1, BLOCK // words.shape[1])
    for at in range(0, len(words), step):
        block = words[at : at + step]
        for shift, mask in ((8, 0x0000FF00), (4, 0x00F000F0)):  # a shuffle of the halves: swap the inner quarters
            moved = ((block >> shift) ^ block).bitwise_and_(mask)
            block = (moved << shift).bitwise_xor_(moved).bitwise_xor_(block)
        found[at : at + step] = block
    return found


def _zero_words(k: int, groups: int) -> int:
    """Words of zero points of an output: a multiple of what small groups make the kernels read at once."""
    size = k // groups
    unit = 1 if size >= 128 else 2 if size >= 64 else 4
    words = -(-groups // WORD)
    return -(-words // unit) * unit


class Awq(PackedFormat):
    """An AWQ checkpoint."""

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], stored: Mapping[str, Stored]) -> QuantFormat:
        return cls(fields_of(config), stored)

    def _check(self, fields: Fields) -> None:
        bits, group = fields.integer("bits"), fields.integer("group_size")
        if bits != BITS:
            raise fields.refusal("bits", f"is {bits}; AWQ is read with {BITS}")
        if group != -1 and group < 1:
            raise fields.refusal("group_size", f"is {group}; it must be -1 (all inputs) or above 0")
        _layout(fields)
        fields.flag("zero_point")
        check_activations(fields)

    def _method(self, name: str, fields: Fields) -> LinearMethod:
        asymmetric = fields.flag("zero_point")
        if asymmetric is None:
            asymmetric = not fields.flag("sym")
        return LAYOUTS[_layout(fields)](name, fields.integer("group_size"), asymmetric, self._stored)


def _layout(fields: Fields) -> str:
    """GPTQModel writes checkpoint_format, AutoAWQ version."""
    found = {fields.word(key, "") for key in ("version", "checkpoint_format")} - {""} or {"gemm"}
    if len(found) > 1:
        raise fields.refusal("version", f"and checkpoint_format say {' and '.join(sorted(found))}; they must agree")
    layout = found.pop().replace("-", "_")
    if layout not in LAYOUTS:
        raise fields.refusal("version", f"is {layout!r}; of AWQ {', '.join(LAYOUTS)} are read")
    return layout


EXPORT = Awq
