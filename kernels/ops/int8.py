"""Integer products: rows that were quantised to 8 bits times a weight of one int8 scale per output (W8A8).

Layouts of a weight [N, K]:
rows    data int8 [N, K].
others  a provider's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """W[n, k] = data[n, k] * scales[n]."""

    data: Tensor
    layout: str
    n: int
    k: int
    scales: Tensor  # float32 [N]
    sums: Tensor  # int32 [N], of each output's integers: what a zero point of x is multiplied by

    @property
    def nbytes(self) -> int:
        """Bytes of all that lasts."""
        return self.data.nbytes + self.scales.nbytes + self.sums.nbytes


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """x[t, k] = (codes[t, k] - zeros[t]) * scales[t]."""

    codes: Tensor  # int8 [T, K]
    scales: Tensor  # float32 [T]
    zeros: Tensor | None  # int32 [T]; None = all 0


@op
def quantize_rows(x: Tensor, scale: Tensor | None, zero: int, symmetric: bool) -> Int8Rows:
    """x[T, K] to int8, half to even. `scale` float32 [1] and `zero` are the same for all rows; None = each row's own.

    A row's own scale is that of compressed-tensors: symmetric max|x| / 127.5, else (max - min) / 255 where the range
    holds 0, and then zero = round(-128 - min / scale).
    """
    wide = x.float()
    if scale is not None:
        scales = scale.expand(len(x))
        zeros = torch.full((len(x),), float(zero), device=x.device)
    else:
        scales, zeros = row_scales(wide, symmetric)
    codes = (torch.round(wide / scales[:, None]) + zeros[:, None]).clamp(-128, 127)
    has_zeros = zero != 0 if scale is not None else not symmetric
    return Int8Rows(codes.to(torch.int8), scales, zeros.to(torch.int32) if has_zeros else None)


def row_scales(wide: Tensor, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Each row's own scale and zero point, float32 [T] both."""
    if symmetric:
        return _not_zero(wide.abs().amax(-1) / 127.5), wide.new_zeros(len(wide))
    low, high = wide.amin(-1).clamp(max=0), wide.amax(-1).clamp(min=0)
    scales = _not_zero((high - low) / 255)
    return scales, torch.round(-128 - low / scales).clamp(-128, 127)


def _not_zero(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, torch.finfo(torch.float32).eps, scales)


@op
def matmul_int8(x: Int8Rows, weight: Int8Weight, dtype: torch.dtype) -> Tensor:
    """x[T, K] times the transposed weight: [T, N] in `dtype`; the integer sums are exact."""
    sums = x.codes.double() @ integers_of(weight).double().t()
    if x.zeros is not None:
        sums = sums - x.zeros.double()[:, None] * weight.sums
    return (sums.float() * x.scales[:, None] * weight.scales).to(dtype)


@op
def sum_rows(data: Tensor) -> Tensor:
    """data[N, K] int8 (in any strides) -> the sum of each row: int32 [N]."""
    return data.sum(1, dtype=torch.int32)


def dense_rows(x: Int8Rows) -> Tensor:
    """The numbers that rows mean: [T, K] float32."""
    codes = x.codes.float() if x.zeros is None else x.codes.float() - x.zeros[:, None]
    return codes * x.scales[:, None]


def dense(weight: Int8Weight) -> Tensor:
    """The matrix itself: [N, K] float32."""
    return integers_of(weight).float() * weight.scales[:, None]


Packer = Callable[[Int8Weight], Int8Weight | None]
Unpacker = Callable[[Int8Weight], Tensor]
_packers: dict[str, Packer] = {}  # by provider of matmul_int8
_unpackers: dict[str, Unpacker] = {"rows": lambda weight: weight.data}  # by layout


def packer(provider: str, layout: str, unpack: Unpacker) -> Callable[[Packer], Packer]:
    """Register `layout`, by which `provider` multiplies, and how its integers are read back (int8 [N, K])."""

    def register(make: Packer) -> Packer:
        _packers[provider], _unpackers[layout] = make, unpack
        return make

    return register


def rows_weight(data: Tensor, scales: Tensor) -> Int8Weight:
    """The weight of data int8 [N, K] and scales [N], in layout `rows`."""
    n, k = data.shape
    return Int8Weight(data, "rows", n, k, scales.float(), sum_rows(data))


def pack(weight: Int8Weight) -> Int8Weight:
    """A weight of layout `rows` in the layout of the provider that will multiply by it."""
    for provider in matmul_int8.providers():
        packed = _packers[provider](weight) if provider in _packers else None
        if packed is not None:
            return packed
    return weight


def integers_of(weight: Int8Weight) -> Tensor:
    """The integers of any layout: int8 [N, K]."""
    return _unpackers[weight.layout](weight)


@quantize_rows.cases(Tolerances())
def _rows(make: Inputs) -> Iterator[Case]:
    scale = make.put([0.02], torch.float32)
    for label, shape in (("one row", (1, 64)), ("odd sizes", (7, 33)), ("no rows", (0, 16))):
        yield Case(f"{label}, symmetric", (make.normal(*shape), None, 0, True))
        yield Case(f"{label}, asymmetric", (make.normal(*shape), None, 0, False))
        yield Case(f"{label}, static", (make.normal(*shape), scale, 0, True))
        yield Case(f"{label}, static with a zero point", (make.normal(*shape), scale, -9, False))
    yield Case("a row of zeros", (make.normal(3, 32, scale=0.0), None, 0, True))
    yield Case("Llama 8B down", (make.normal(64, 14336), None, 0, False), large=True)


@sum_rows.cases(Tolerances())
def _sums(make: Inputs) -> Iterator[Case]:
    data = (make.integers(256, 50, 300) - 128).to(torch.int8)
    yield Case("rows", (data,))
    yield Case("columns", (data.t(),))
    yield Case("apart", (data[::2, ::3],))


@matmul_int8.cases(Tolerances(float32=1e-5))
def _products(make: Inputs) -> Iterator[Case]:
    for label, rows, n, k, large in (
        ("one row", 1, 96, 64, False),
        ("odd sizes", 7, 50, 33, False),
        ("no rows", 0, 32, 16, False),
        ("k in blocks", 29, 72, 2100, False),
        ("SmolLM2 gate and up, 1 row", 1, 3072, 576, True),
        ("SmolLM2 down, 300 rows", 300, 576, 1536, True),
    ):
        data = (make.integers(256, n, k) - 128).to(torch.int8)
        weight = rows_weight(data, make.normal(n, scale=1e-4, dtype=torch.float32))
        codes = (make.integers(256, rows, k) - 128).to(torch.int8)
        scales = make.normal(rows, scale=0.01, dtype=torch.float32)
        zeros = make.integers(64, rows, dtype=torch.int32)
        for packed in (pack(weight), weight):
            told = f"{label}, {packed.layout}"
            yield Case(told, (Int8Rows(codes, scales, None), packed, make.dtype), large=large)
            yield Case(f"{told}, zero points", (Int8Rows(codes, scales, zeros), packed, make.dtype), large=large)
