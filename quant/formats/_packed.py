"""What GPTQ and AWQ checkpoints have in common: a module is packed (`qweight`) or plain, as the file has it.

The config says how to read what is packed; where it denies what is stored, the checkpoint is refused.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ...kernels.ops.grouped import PLANES
from ..base import LinearMethod, LinearShape, QuantFormat, Stored
from ._config import Fields
from ._rules import Rules
from .none import PlainMethod

IN_A_BLOCK = re.compile(r"\.\d+\.")


class PackedFormat(QuantFormat):
    """Modules by what is stored of them, with the settings that the config gives each."""

    def __init__(self, fields: Fields, stored: Mapping[str, Stored]) -> None:
        self._fields = fields
        self._stored = stored
        self._rules = Rules(fields)
        self._only = fields.names("modules_in_block_to_quantize")
        self._never = fields.names("modules_to_not_convert")
        for each in (fields, *(fields.changed(rule.changes, rule.place) for rule in self._rules if rule.changes)):
            self._check(each)

    def linear(self, name: str, shape: LinearShape) -> LinearMethod:
        packed, plain = (f"{name}.{kind}" in self._stored for kind in ("qweight", "weight"))
        if packed and plain:
            raise Unsupported(f"{name} is stored twice: as qweight and as weight", param="model")
        if not packed and not plain:
            raise Unsupported(f"the checkpoint holds neither {name}.qweight nor {name}.weight", param="model")
        if plain:
            return PlainMethod(name)
        rule = self._rules.of(name)
        left = rule.place if rule is not None and rule.changes is None else self._left_by(name)
        if left is not None:
            raise Unsupported(f"{name}.qweight is stored, but {left} leaves the module unquantised", param="model")
        fields = self._fields.changed(rule.changes, rule.place) if rule and rule.changes else self._fields
        return self._method(name, fields)

    def has_bias(self, name: str) -> bool:
        return f"{name}.qweight" in self._stored and f"{name}.bias" in self._stored

    @abstractmethod
    def _check(self, fields: Fields) -> None:
        """Raises Unsupported, naming the field, for settings that cannot be read."""

    @abstractmethod
    def _method(self, name: str, fields: Fields) -> LinearMethod:
        """How the packed module `name` is read by the settings `fields`."""

    def _left_by(self, name: str) -> str | None:
        """The field that leaves a module in 16 bits by its name."""
        for part in self._never:
            if f".{part}." in f".{name}.":
                return f"modules_to_not_convert {part!r}"
        if name.rpartition(".")[2] == "lm_head" and self._fields.flag("lm_head") is False:
            return "lm_head false"
        in_a_block = IN_A_BLOCK.search(name) is not None
        if self._only and in_a_block and not any(f".{name}".endswith(f".{part}") for part in self._only):
            return "modules_in_block_to_quantize"
        return None


def check_activations(fields: Fields) -> None:
    """Raises Unsupported where the weights were made for rows that are rounded too, or are no integers."""
    bits = fields.integer("act_bits", 16)
    if bits < 16:
        raise fields.refusal("act_bits", f"is {bits}; activations in 16 bits are served")
    kind = fields.word("data_type", "int")
    if not kind.startswith("int"):
        raise fields.refusal("data_type", f"is {kind!r}; int is read")


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of a packed matrix, from its shape."""

    bits: int
    group: int
    scale: int  # bytes of one scale, with what else a group has beside its zero point
    zeros: bool  # a zero point for each group, or one for all
    order: bool

    def of(self, shape: LinearShape) -> int:
        """Codes in whole words, scales, zero points and the order of the inputs."""
        n, k = shape.out_features, shape.in_features
        words = sum(-(-k * width // 32) for width in PLANES[self.bits])
        return n * (4 * words + -(-k // self.group) * (self.scale + self.zeros)) + 8 * k * self.order


def finite(tensor: Tensor, name: str) -> Tensor:
    """A copy of it; raises Unsupported, naming the tensor, for one that is infinite or no number somewhere."""
    if not torch.isfinite(tensor).all():
        raise Unsupported(f"{name} holds numbers that are not finite", param="model")
    return tensor.clone(memory_format=torch.contiguous_format)


def one_or_all(zeros: Tensor) -> Tensor | int:
    """Zero points uint8 [G, N], as one number where they are all the same."""
    first = int(zeros[0, 0])
    return first if bool((zeros == first).all()) else zeros


def group_of(size: int, inputs: int) -> int:
    """Inputs that share a scale; -1 = all of them."""
    return inputs if size == -1 else min(size, inputs)


def scale_bytes(stored: Mapping[str, Stored], name: str) -> int:
    """Bytes of one scale of module `name`."""
    found = stored.get(f"{name}.scales")
    return found.dtype.itemsize if found is not None and isinstance(found.dtype, torch.dtype) else 2
