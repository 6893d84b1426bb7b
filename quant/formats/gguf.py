"""GGUF: blocks of 32 or 256 values with their scales beside the codes, a type for each matrix.

A matrix arrives as the raw bytes of its rows. Every type becomes codes in groups, scaled (and shifted) in one level or
two; nothing is rounded on the way. Source: llama.cpp's ggml/src/ggml-common.h and gguf-py/gguf/quants.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ...kernels.ops.grouped import GroupedWeight, Groups, Values, pack_rows
from ..base import LinearMethod, LinearShape, QuantFormat, Stored, TensorSpec
from ..matrix import GroupedMatrix, Matrix
from .none import PlainMethod

FLOATS = ("F32", "F16", "BF16")
LANES = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True, slots=True)
class Kind:
    """One block type: values and bytes of a block, and what its blocks raw[N, B, size] uint8 mean."""

    block: int
    size: int
    decode: Callable[[Tensor], GroupedWeight]


def _fields(raw: Tensor, bits: int, run: int) -> Tensor:
    """Fields of `bits` bits, [N, B, values] uint8: the lowest of `run` bytes, then the next of the same bytes, ...

    Bytes go eight at a time (or as many as a run has), which is three times as fast as one by one.
    """
    n, blocks, size = raw.shape
    if run == 1:
        return _spread(bits)[raw.long()].view(n, blocks, -1).view(torch.uint8)
    lane = LANES[min(run, 8)]
    aligned = raw.clone(memory_format=torch.contiguous_format)
    words = aligned.view(lane).view(n, blocks, size // run, -1)
    mask = int(torch.full((lane.itemsize,), (1 << bits) - 1, dtype=torch.uint8).view(lane))
    fields = [(words >> at) & mask for at in range(0, 8, bits)]
    return torch.stack(fields, dim=3).view(n, blocks, -1).view(torch.uint8)


@cache
def _spread(bits: int) -> Tensor:
    """The fields of each byte, one after the other, as one number: [256]."""
    fields = (torch.arange(256)[:, None] >> torch.arange(0, 8, bits)) & ((1 << bits) - 1)
    return fields.to(torch.uint8).view(LANES[8 // bits])[:, 0]


def _halves(raw: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block: [B, N]."""
    return raw.view(torch.float16)[:, :, at // 2].t().contiguous()


def _by_group(numbers: Tensor) -> Tensor:
    """Numbers of each block's groups [N, B, groups] -> [G, N]."""
    return numbers.flatten(1).t().contiguous()


def _weight(
    codes: Tensor,
    bits: int,
    group: int,
    scales: Groups,
    *,
    zeros: int = 0,
    mins: Groups | None = None,
    table: Tensor | None = None,
) -> GroupedWeight:
    flat = codes.flatten(1)
    values: Values = "integers" if table is None else "table"
    n, k = flat.shape
    return GroupedWeight((flat,), "codes", n, k, bits, group, scales, zeros, mins, values, table)


def _q4_0(raw: Tensor) -> GroupedWeight:
    return _weight(_fields(raw[:, :, 2:], 4, 16), 4, 32, Groups(_halves(raw, 0)), zeros=8)


def _q4_1(raw: Tensor) -> GroupedWeight:
    return _weight(_fields(raw[:, :, 4:], 4, 16), 4, 32, Groups(_halves(raw, 0)), mins=Groups(_halves(raw, 2)))


def _q5_0(raw: Tensor) -> GroupedWeight:
    codes = _fields(raw[:, :, 6:], 4, 16) | (_fields(raw[:, :, 2:6], 1, 1) << 4)
    return _weight(codes, 5, 32, Groups(_halves(raw, 0)), zeros=16)


def _q5_1(raw: Tensor) -> GroupedWeight:
    codes = _fields(raw[:, :, 8:], 4, 16) | (_fields(raw[:, :, 4:8], 1, 1) << 4)
    return _weight(codes, 5, 32, Groups(_halves(raw, 0)), mins=Groups(_halves(raw, 2)))


def _q8_0(raw: Tensor) -> GroupedWeight:
    return _weight(raw[:, :, 2:] ^ 128, 8, 32, Groups(_halves(raw, 0)), zeros=128)


def _iq4_nl(raw: Tensor) -> GroupedWeight:
    table = torch.tensor(IQ4, dtype=torch.float32)
    return _weight(_fields(raw[:, :, 2:], 4, 16), 4, 32, Groups(_halves(raw, 0)), table=table)


def _iq4_xs(raw: Tensor) -> GroupedWeight:
    sixths = _fields(raw[:, :, 4:8], 4, 1) | (_fields(raw[:, :, 2:4], 2, 1) << 4)
    scales = Groups(_by_group(sixths.view(torch.int8) - 32), _halves(raw, 0), 8)
    return _weight(_fields(raw[:, :, 8:], 4, 16), 4, 32, scales, table=torch.tensor(IQ4, dtype=torch.float32))


def _q2_k(raw: Tensor) -> GroupedWeight:
    both = raw[:, :, :16]
    scales = Groups(_by_group(both & 15), _halves(raw, 80), 16)
    mins = Groups(_by_group(both >> 4), -_halves(raw, 82), 16)
    return _weight(_fields(raw[:, :, 16:80], 2, 32), 2, 16, scales, mins=mins)


def _q3_k(raw: Tensor) -> GroupedWeight:
    """A high bit that is not set takes 4 away."""
    codes = _fields(raw[:, :, 32:96], 2, 32) | (_fields(raw[:, :, :32], 1, 32) << 2)
    sixths = _fields(raw[:, :, 96:104], 4, 8) | (_fields(raw[:, :, 104:108], 2, 4) << 4)
    scales = Groups(_by_group(sixths.view(torch.int8) - 32), _halves(raw, 108), 16)
    return _weight(codes, 3, 16, scales, zeros=4)


def _q4_k(raw: Tensor) -> GroupedWeight:
    scales, mins = _scales_and_mins(raw)
    return _weight(_fields(raw[:, :, 16:], 4, 32), 4, 32, scales, mins=mins)


def _q5_k(raw: Tensor) -> GroupedWeight:
    scales, mins = _scales_and_mins(raw)
    codes = _fields(raw[:, :, 48:], 4, 32) | (_fields(raw[:, :, 16:48], 1, 32) << 4)
    return _weight(codes, 5, 32, scales, mins=mins)


def _q6_k(raw: Tensor) -> GroupedWeight:
    codes = _fields(raw[:, :, :128], 4, 64) | (_fields(raw[:, :, 128:192], 2, 32) << 4)
    scales = Groups(_by_group(raw[:, :, 192:208]).view(torch.int8), _halves(raw, 208), 16)
    return _weight(codes, 6, 16, scales, zeros=32)


def _scales_and_mins(raw: Tensor) -> tuple[Groups, Groups]:
    """Of Q4_K and Q5_K, 6 bits each: the last four are cut, low bits in `third`, high ones on top of the first four."""
    first, second, third = raw[:, :, 4:8], raw[:, :, 8:12], raw[:, :, 12:16]
    scales = torch.cat([first & 63, (third & 15) | ((first >> 2) & 48)], dim=2)
    mins = torch.cat([second & 63, (third >> 4) | ((second >> 2) & 48)], dim=2)
    return Groups(_by_group(scales), _halves(raw, 0), 8), Groups(_by_group(mins), -_halves(raw, 2), 8)


KINDS = {
    "Q4_0": Kind(32, 18, _q4_0),
    "Q4_1": Kind(32, 20, _q4_1),
    "Q5_0": Kind(32, 22, _q5_0),
    "Q5_1": Kind(32, 24, _q5_1),
    "Q8_0": Kind(32, 34, _q8_0),
    "Q2_K": Kind(256, 84, _q2_k),
    "Q3_K": Kind(256, 110, _q3_k),
    "Q4_K": Kind(256, 144, _q4_k),
    "Q5_K": Kind(256, 176, _q5_k),
    "Q6_K": Kind(256, 210, _q6_k),
    "IQ4_NL": Kind(32, 18, _iq4_nl),
    "IQ4_XS": Kind(256, 136, _iq4_xs),
}


class GgufMethod(LinearMethod):
    """One `weight` of a block type, which arrives as uint8 [out, bytes of a row]."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(name)
        self.kind = kind

    def tensors(self, shape: LinearShape) -> dict[str, TensorSpec]:
        block = KINDS[self.kind].block
        if shape.in_features % block:
            raise Unsupported(
                f"{self.name}.weight: {shape.in_features} inputs cannot be {self.kind}, whose blocks are of {block}",
                param="model",
            )
        size = (shape.out_features, shape.in_features)
        return {"weight": TensorSpec(size, (self.kind,), out_axis=0, in_axis=1)}

    def read(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> Matrix:
        kind = KINDS[self.kind]
        weight = kind.decode(tensors["weight"].view(shape.out_features, -1, kind.size))
        if not all(map(_is_finite, (weight.scales, weight.mins or weight.scales))):
            raise Unsupported(f"{self.name}.weight holds a block whose scale or minimum is not finite", param="model")
        return GroupedMatrix(weight)

    def describe(self) -> str:
        return f"GGUF {self.kind}"

    def weight_bytes(self, shape: LinearShape) -> int:
        kind = KINDS[self.kind]
        block = pack_rows(replace(kind.decode(torch.zeros(1, 1, kind.size, dtype=torch.uint8)), table=None))
        return block.nbytes * shape.out_features * (shape.in_features // kind.block)


class Gguf(QuantFormat):
    """Each matrix is of the type that the file's header says."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self._stored = stored

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], stored: Mapping[str, Stored]) -> Gguf:
        unread = {name: each.dtype for name, each in stored.items() if _is_unread(each)}
        for name, kind in unread.items():
            raise Unsupported(
                f"{name} is of GGUF type {kind}, which Aril does not read; it reads {', '.join((*KINDS, *FLOATS))}",
                param="model",
            )
        return cls(stored)

    def linear(self, name: str, shape: LinearShape) -> LinearMethod:
        found = self._stored.get(f"{name}.weight")
        kind = None if found is None else found.dtype
        return GgufMethod(name, kind) if isinstance(kind, str) else PlainMethod(name)


def _is_finite(numbers: Groups) -> bool:
    halves = numbers.fine if numbers.coarse is None else numbers.coarse
    return bool(halves.isfinite().all())


def _is_unread(stored: Stored) -> bool:
    return isinstance(stored.dtype, str) and stored.dtype not in KINDS


EXPORT = Gguf
