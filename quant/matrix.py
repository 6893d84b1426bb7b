"""What the tensors of every format become: one of a few kinds of matrix, with an exact dense meaning and a product.

A Matrix is still unpacked and knows its numbers; joined with its neighbours it becomes a Product, in the layout of the
kernels of its device. Nothing here knows a file format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ..kernels.ops import grouped, int8, matmul
from ..kernels.ops.activation import silu_mul
from ..kernels.ops.grouped import GroupedWeight
from ..kernels.ops.grouped_rows import rows_of_grouped
from ..kernels.ops.int8 import Int8Weight
from .activations import AsTheyAre, Rounding, Static8
from .joining import joined, moved_to

AS_THEY_ARE = AsTheyAre()
MANY_ROWS = 32  # from 16 on, each row of torch's float32 product on one core has the bits it has among any others (MKL)


class Product(Protocol):
    """A weight that is ready to multiply."""

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, K] -> [T, N] in x's dtype, no bias."""

    def wide(self, x: Tensor) -> Tensor:
        """The same in float32; a product that adds up in float32 does not round it on the way."""

    def gated(self, x: Tensor) -> Tensor:
        """silu of the first half of the outputs times the second half: [T, N / 2] in x's dtype."""

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows ids[T] int64 of the matrix: [T, K] in `dtype`. The look-up of an embedding."""


class Rounded:
    """A product that knows no shorter way to what is made of its results."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def wide(self, x: Tensor) -> Tensor:
        return self(x).float()

    def gated(self, x: Tensor) -> Tensor:
        return silu_mul(self(x))


class Matrix(Protocol):
    """A matrix [n, k] as a checkpoint means it."""

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    def dense(self) -> Tensor:
        """Its numbers, exactly: [N, K] float32."""

    def joined(self, others: Sequence[Matrix]) -> Matrix | None:
        """The matrix with the outputs of `others` behind its own; None when they are not of one kind."""

    def product(self, device: torch.device) -> Product:
        """Pack it for the kernels of `device`."""


@dataclass(frozen=True, slots=True)
class PlainMatrix:
    """Numbers of the model's own dtype."""

    w: Tensor  # [N, K]; may lie in the file's memory

    @property
    def n(self) -> int:
        return self.w.shape[0]

    @property
    def k(self) -> int:
        return self.w.shape[1]

    def dense(self) -> Tensor:
        return self.w.float()

    def joined(self, others: Sequence[Matrix]) -> Matrix | None:
        ws = [other.w for other in others if isinstance(other, PlainMatrix)]
        return PlainMatrix(torch.cat([self.w, *ws])) if len(ws) == len(others) else None

    def product(self, device: torch.device) -> Product:
        packed = matmul.pack(self.w.to(device))
        if packed.data.data_ptr() == self.w.data_ptr():  # not packed, and perhaps in the file's memory
            packed = replace(packed, data=self.w.clone())
        return PlainProduct(packed)


@dataclass(frozen=True, slots=True)
class PlainProduct:
    """A plain weight in its device's layout."""

    weight: matmul.Weight

    @property
    def nbytes(self) -> int:
        return int(self.weight.data.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        return matmul.linear(x, self.weight)

    def wide(self, x: Tensor) -> Tensor:
        return matmul.linear(x, self.weight, torch.float32)

    def gated(self, x: Tensor) -> Tensor:
        return matmul.linear_silu_mul(x, self.weight)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return matmul.rows_of(self.weight, ids).to(dtype)


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """Codes in groups, and what becomes of the rows that meet them."""

    weight: GroupedWeight  # in layout `codes`
    rounding: Rounding = AS_THEY_ARE

    @property
    def n(self) -> int:
        return self.weight.n

    @property
    def k(self) -> int:
        return self.weight.k

    def dense(self) -> Tensor:
        return grouped.dense(self.weight)

    def joined(self, others: Sequence[Matrix]) -> Matrix | None:
        alike = [other for other in others if isinstance(other, GroupedMatrix) and other.rounding == self.rounding]
        weight = joined([self.weight, *(other.weight for other in alike)]) if len(alike) == len(others) else None
        return None if weight is None else GroupedMatrix(weight, self.rounding)

    def product(self, device: torch.device) -> Product:
        return GroupedProduct(grouped.pack(moved_to(self.weight, device)), self.rounding.on(device))


@dataclass(frozen=True, slots=True)
class GroupedProduct(Rounded):
    """Codes in their device's layout."""

    weight: GroupedWeight
    rounding: Rounding

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        rounded = self.rounding(x)
        if _is_compared(x) and self.rounding != AS_THEY_ARE:
            return _as_tools_multiply(rounded, grouped.dense(self.weight))
        return grouped.matmul_grouped(rounded, self.weight)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return rows_of_grouped(self.weight, ids).to(dtype)


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """W8A8: int8 numbers with one scale per output, multiplied as integers by rows that are quantised on the way."""

    data: Tensor  # int8 [N, K]
    scales: Tensor  # [N]
    rows: Static8 | None  # None = each row's own symmetric scale
    symmetric: bool = True  # of rows' own scales

    @property
    def n(self) -> int:
        return self.data.shape[0]

    @property
    def k(self) -> int:
        return self.data.shape[1]

    def dense(self) -> Tensor:
        return self.data.float() * self.scales.float()[:, None]

    def joined(self, others: Sequence[Matrix]) -> Matrix | None:
        alike = [other for other in others if isinstance(other, Int8Matrix) and self._treats_rows_as(other)]
        if len(alike) < len(others):
            return None
        data, scales = ([getattr(each, field) for each in (self, *alike)] for field in ("data", "scales"))
        return replace(self, data=torch.cat(data), scales=torch.cat(scales))

    def product(self, device: torch.device) -> Product:
        weight = int8.pack(int8.rows_weight(self.data.to(device), self.scales.to(device)))
        static = None if self.rows is None else self.rows.on(device)
        return Int8Product(weight, static, self.symmetric)

    def _treats_rows_as(self, other: Int8Matrix) -> bool:
        return self.rows == other.rows and self.symmetric == other.symmetric


@dataclass(frozen=True, slots=True)
class Int8Product(Rounded):
    """int8 in its device's layout."""

    weight: Int8Weight
    static: Static8 | None
    symmetric: bool

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        scale, zero = (None, 0) if self.static is None else (self.static.scale, self.static.zero)
        rows = int8.quantize_rows(x, scale, zero, self.symmetric)
        if _is_compared(x):
            return _as_tools_multiply(int8.dense_rows(rows), int8.dense(self.weight))
        return int8.matmul_int8(rows, self.weight, x.dtype)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        found = int8.integers_of(self.weight)[ids].float() * self.weight.scales[ids][:, None]
        return found.to(dtype)


def _is_compared(x: Tensor) -> bool:
    """Whether rows that a format rounds are multiplied as its tool does, dequantised and in torch's order of adding up.

    A last bit that differs can move a number by a whole step at the next rounding, and the answer by tenths. float32 is
    there to compare with the tools; what serves is bfloat16, by kernels that are quick.
    """
    return x.dtype == torch.float32


def _as_tools_multiply(x: Tensor, dense: Tensor) -> Tensor:
    """x[T, K] times the transposed dense [N, K]; a few rows are added up as many are, so that company shows less."""
    filled = torch.nn.functional.pad(x, (0, 0, 0, max(0, MANY_ROWS - len(x))))
    return torch.nn.functional.linear(filled, dense)[: len(x)]


@dataclass(frozen=True, slots=True)
class SideBySide(Rounded):
    """Matrices of different kinds that read the same rows: their outputs one after the other."""

    products: tuple[Product, ...]

    @property
    def nbytes(self) -> int:
        return sum(product.nbytes for product in self.products)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([product(x) for product in self.products], dim=1)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        raise AssertionError("an embedding is one matrix")


def product_of(matrices: Sequence[Matrix], device: torch.device) -> Product:
    """The product of a fused Linear: one where its matrices are alike, else neighbours that are alike together."""
    runs: list[Matrix] = []
    for matrix in matrices:
        longer = runs[-1].joined([matrix]) if runs else None
        if longer is None:
            runs.append(matrix)
        else:
            runs[-1] = longer
    if len(runs) == 1:
        return runs[0].product(device)
    return SideBySide(tuple(run.product(device) for run in runs))
