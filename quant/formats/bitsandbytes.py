"""bitsandbytes: codes of a 16-value map in blocks that run through all rows (NF4, FP4), or int8 and a scale per output.

LLM.int8 is read as what it stores, int8 weights. The library also rounds activations, in a way that depends on the
outliers of everything else in the batch; rows here do not see each other, and are not rounded.
Source: bitsandbytes/functional.py (QuantState), nn/modules.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ...kernels.ops.grouped import GroupedWeight, Groups
from ..base import FLOATS, LinearMethod, LinearShape, QuantFormat, Stored, TensorSpec
from ..matrix import GroupedMatrix, Matrix
from .none import PlainMethod

STATE = "weight.quant_state.bitsandbytes__"  # before the type
TYPES = ("nf4", "fp4")
STORAGE = (torch.uint8, torch.int8, *FLOATS)  # bnb_4bit_quant_storage: the bytes are the same
LONGEST_STATE = 4096  # bytes; real ones have under 200
LONGEST_BLOCK = 1 << 31  # values; real ones have up to 4096
ROW_MAJOR = 0  # weight_format; the others are layouts of old GPUs


@dataclass(frozen=True, slots=True)
class State:
    """What a quant_state says."""

    blocksize: int
    nested_blocksize: int = 0
    nested_offset: float = 0.0


class FourBit(LinearMethod):
    """NF4 or FP4: two codes a byte, the first in the high nibble, and an absmax for each block of the flat matrix."""

    def __init__(self, name: str, kind: str, stored: Mapping[str, Stored]) -> None:
        super().__init__(name)
        self.kind = kind
        self._stored = stored
        scales = stored.get(f"{name}.weight.absmax")
        self._nested = scales is not None and scales.dtype == torch.uint8

    def tensors(self, shape: LinearShape) -> dict[str, TensorSpec]:
        nested = ("weight.nested_absmax", "weight.nested_quant_map") if self._nested else ()
        wanted = {name: self._as_stored(name, (torch.float32,)) for name in ("weight.quant_map", *nested)}
        absmax = torch.uint8 if self._nested else torch.float32
        return {
            "weight": TensorSpec(self._packed_shape(shape), STORAGE),
            "weight.absmax": self._as_stored("weight.absmax", (absmax,)),
            STATE + self.kind: self._as_stored(STATE + self.kind, (torch.uint8,)),
            **wanted,
        }

    def read(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Matrix:
        state = self._state(tensors[STATE + self.kind], shape)
        table = self._sized(tensors, "weight.quant_map", 16)
        packed = tensors["weight"].reshape(-1).view(torch.uint8)
        codes = torch.stack([packed >> 4, packed & 15], dim=1).view(-1)
        n, k = shape.out_features, shape.in_features
        group = math.gcd(k, state.blocksize)  # no block ends within such a group
        starts = torch.arange(0, n * k, group)
        scales = self._scales(tensors, state, -(-n * k // state.blocksize))[starts // state.blocksize]
        return GroupedMatrix(
            GroupedWeight(
                (codes[: n * k].view(n, k),),
                "codes",
                n,
                k,
                4,
                group,
                Groups(scales.view(n, -1).t().contiguous()),
                values="table",
                table=table.clone(),
            )
        )

    def describe(self) -> str:
        return f"bitsandbytes {self.kind.upper()}{', scales quantised too' if self._nested else ''}"

    def weight_bytes(self, shape: LinearShape) -> int:
        blocks = math.prod(self._as_stored("weight.absmax", ()).shape)
        return shape.out_features * shape.in_features // 2 + 4 * blocks

    def _as_stored(self, name: str, dtypes: tuple[torch.dtype, ...]) -> TensorSpec:
        """Of any size: what it must be is known when the quant_state is read."""
        found = self._stored.get(f"{self.name}.{name}")
        return TensorSpec(() if found is None else found.shape, dtypes)

    def _packed_shape(self, shape: LinearShape) -> tuple[int, ...]:
        found = self._stored.get(f"{self.name}.weight")
        itemsize = found.dtype.itemsize if found is not None and isinstance(found.dtype, torch.dtype) else 1
        size = -(-shape.out_features * shape.in_features // (2 * itemsize))
        return (1, size) if found is not None and found.shape == (1, size) else (size, 1)

    def _state(self, tensor: Tensor, shape: LinearShape) -> State:
        name = f"{self.name}.{STATE}{self.kind}"
        try:
            found = json.loads(bytes(tensor.flatten()[:LONGEST_STATE].tolist()))
            state = State(
                _count(found["blocksize"]),
                _count(found["nested_blocksize"]) if self._nested else 0,
                _finite(found["nested_offset"]) if self._nested else 0.0,
            )
            said = str(found["quant_type"]), list(found["shape"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unsupported(f"{name} is no quant_state: {type(error).__name__} {error}", param="model") from error
        expected = self.kind, [shape.out_features, shape.in_features]
        if said != expected:
            raise Unsupported(f"{name} says {said[0]} {said[1]} instead of {expected[0]} {expected[1]}", param="model")
        return state

    def _scales(self, tensors: Mapping[str, Tensor], state: State, blocks: int) -> Tensor:
        """The absmax of each block: [blocks] float32."""
        scales = self._sized(tensors, "weight.absmax", blocks)
        if not self._nested:
            return _all_finite(scales, f"{self.name}.weight.absmax")
        outer = self._sized(tensors, "weight.nested_absmax", -(-blocks // state.nested_blocksize))
        _all_finite(outer, f"{self.name}.weight.nested_absmax")
        values = self._sized(tensors, "weight.nested_quant_map", 256)[scales.long()]
        return values * outer.repeat_interleave(state.nested_blocksize)[:blocks] + state.nested_offset

    def _sized(self, tensors: Mapping[str, Tensor], name: str, size: int) -> Tensor:
        found = tensors[name].reshape(-1)
        if len(found) != size:
            raise Unsupported(f"{self.name}.{name} holds {len(found)} values instead of {size}", param="model")
        return found


class Int8(LinearMethod):
    """LLM.int8: w * SCB / 127."""

    def __init__(self, name: str, stored: Mapping[str, Stored]) -> None:
        super().__init__(name)
        self._has_layout = f"{name}.weight_format" in stored

    def tensors(self, shape: LinearShape) -> dict[str, TensorSpec]:
        layout = {"weight_format": TensorSpec((), (torch.uint8, torch.int8, torch.int64))} if self._has_layout else {}
        return {
            "weight": TensorSpec((shape.out_features, shape.in_features), (torch.int8,), out_axis=0, in_axis=1),
            "SCB": TensorSpec((shape.out_features,), out_axis=0),
            **layout,
        }

    def read(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Matrix:
        if self._has_layout and int(tensors["weight_format"]) != ROW_MAJOR:
            raise Unsupported(
                f"{self.name}.weight_format is {int(tensors['weight_format'])}, a layout for old GPUs; only row-major "
                f"weights ({ROW_MAJOR}) are read: save the model again with a newer bitsandbytes",
                param="model",
            )
        codes = tensors["weight"].view(torch.uint8) ^ 128
        scales = Groups((_all_finite(tensors["SCB"], f"{self.name}.SCB").float() / 127)[None])
        n, k = codes.shape
        return GroupedMatrix(GroupedWeight((codes,), "codes", n, k, 8, k, scales, zeros=128))

    def describe(self) -> str:
        return "bitsandbytes LLM.int8: int8 weights, a scale per output; activations as they are"

    def weight_bytes(self, shape: LinearShape) -> int:
        return shape.out_features * (shape.in_features + 4)


class BitsAndBytes(QuantFormat):
    """Which of the two a matrix is, or neither, is told by the tensors beside it, not by a list of skipped modules."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self._stored = stored

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], stored: Mapping[str, Stored]) -> BitsAndBytes:
        four, eight = (bool(config.get(f"load_in_{bits}bit", config.get(f"_load_in_{bits}bit"))) for bits in (4, 8))
        if four == eight:
            said = "both load_in_4bit and" if four else "neither load_in_4bit nor"
            raise Unsupported(f"quantization_config says {said} load_in_8bit; Aril reads one or other", param="model")
        kind = config.get("bnb_4bit_quant_type", "fp4")
        if four and kind not in TYPES:
            raise Unsupported(f"bnb_4bit_quant_type is {kind!r}; Aril reads {' and '.join(TYPES)}", param="model")
        return cls(stored)

    def linear(self, name: str, shape: LinearShape) -> LinearMethod:
        kinds = [kind for kind in TYPES if f"{name}.{STATE}{kind}" in self._stored]
        is_int8 = f"{name}.SCB" in self._stored
        if len(kinds) + is_int8 > 1:
            raise Unsupported(
                f"{name} is stored in two ways: {', '.join([*kinds, *['int8'][:is_int8]])}", param="model"
            )
        if kinds:
            return FourBit(name, kinds[0], self._stored)
        if is_int8:
            return Int8(name, self._stored)
        found = self._stored.get(f"{name}.weight")
        if found is not None and found.dtype not in FLOATS:
            raise Unsupported(
                f"{name}.weight is packed, but neither SCB nor {STATE}{{{','.join(TYPES)}}} stands beside it: the "
                "checkpoint was saved without its quantisation state",
                param="model",
            )
        return PlainMethod(name)


def _all_finite(scales: Tensor, name: str) -> Tensor:
    if not scales.isfinite().all():
        raise Unsupported(f"{name} holds numbers that are not finite", param="model")
    return scales


def _count(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= LONGEST_BLOCK:
        raise ValueError(f"a block of {value!r}")
    return value


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(f"an offset of {value!r}")
    return float(value)


EXPORT = BitsAndBytes
