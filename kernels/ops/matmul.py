"""x times the transpose of a plain weight, which is packed once at load into the layout that its device reads fastest.

Layouts of a weight [N, K]:
rows    data [N, K], as it came.
panels  data [ceil(N / P), K, P]: P outputs side by side, the last panel filled up with zeros. A float32 panel holds its
        outputs in order; in a half type output i stands beside output P / 2 + i, so that a shift and a mask make two
        float32 vectors of one load.
pairs   data [ceil(N / P), ceil(K / 2), P, 2]: two inputs of an output side by side, for dot products of
        pairs. Outputs that fill up the last panel are zeros, and so is the partner of an odd K's last input.
split   panels or pairs of bfloat16 in three quarters of their bytes, without loss: _split.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear
from torch.nn.functional import pad

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op
from ._split import joined
from .activation import silu_mul


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [n, k] in some layout; `pack` makes it, the functions of this file read it."""

    data: Tensor
    layout: str
    n: int
    k: int

    @property
    def dtype(self) -> torch.dtype:
        """The type of its numbers."""
        return torch.bfloat16 if self.layout == "split" else self.data.dtype


@op
def linear(x: Tensor, weight: Weight, dtype: torch.dtype | None = None) -> Tensor:
    """x[T, K] times the transposed weight: [T, N] in `dtype` (x's own), accumulated in float32.

    Where `dtype` is wider than x's torch rounds to x's first; other providers need not.
    """
    return torch_linear(x, unpack(weight)).to(dtype or x.dtype)


@op
def linear_silu_mul(x: Tensor, weight: Weight) -> Tensor:
    """silu_mul(linear(x, weight)) with its bits: x[T, K] -> [T, N / 2]."""
    return silu_mul(linear(x, weight))


Packer = Callable[[Tensor], Weight | None]
Sizer = Callable[[int, int, torch.dtype], int | None]
_packers: dict[str, Packer] = {}  # by provider of linear
_sizers: dict[str, Sizer] = {}


def packer(provider: str, size: Sizer) -> Callable[[Packer], Packer]:
    """Register the layout that `provider` multiplies by, and the bytes that a matrix [N, K] of a dtype takes in it.

    The answer None of either leaves a matrix as it is.
    """

    def register(make: Packer) -> Packer:
        _packers[provider], _sizers[provider] = make, size
        return make

    return register


def pack(w: Tensor) -> Weight:
    """The Weight of `w` [N, K], in the layout of the provider that will multiply by it."""
    for provider in linear.providers():
        weight = _packers[provider](w) if provider in _packers else None
        if weight is not None:
            return weight
    return Weight(w, "rows", *w.shape)


def packed_bytes(n: int, k: int, dtype: torch.dtype) -> int:
    """What `pack` makes of a matrix [n, k], in bytes, as long as its numbers are nothing unusual."""
    for provider in linear.providers():
        size = _sizers[provider](n, k, dtype) if provider in _sizers else None
        if size is not None:
            return size
    return n * k * dtype.itemsize


def pack_panels(w: Tensor, width: int) -> Weight:
    """The Weight of `w` [N, K] in panels of `width` outputs; an even number."""
    n, k = w.shape
    data = w.new_empty(-(-n // width), k, width)
    whole = n // width
    _outputs_first(Weight(data[:whole], "panels", n, k)).copy_(w[: whole * width].view(whole, 2, width // 2, k))
    if whole < len(data):
        last = pad(w[whole * width :], (0, 0, 0, -n % width)).view(1, 2, width // 2, k)
        _outputs_first(Weight(data[whole:], "panels", n, k)).copy_(last)
    return Weight(data, "panels", n, k)


def pack_pairs(w: Tensor, width: int) -> Weight:
    """The Weight of `w` [N, K] in panels of `width` outputs and pairs of inputs."""
    n, k = w.shape
    filled = pad(w, (0, k % 2, 0, -n % width))
    data = filled.view(-1, width, (k + 1) // 2, 2).transpose(1, 2).contiguous()
    return Weight(data, "pairs", n, k)


def unpack(weight: Weight) -> Tensor:
    """The matrix [N, K] of a Weight; a view where its layout is rows."""
    if weight.layout == "rows":
        return weight.data
    if weight.layout == "split":
        return unpack(_joined(weight))
    if weight.layout == "pairs":
        return _outputs_first(weight).flatten(2).flatten(0, 1)[: weight.n, : weight.k]
    return _outputs_first(weight).reshape(-1, weight.k)[: weight.n]


@op
def rows_of(weight: Weight, ids: Tensor) -> Tensor:
    """Rows `ids` [T] int64 of the matrix: [T, K]. The look-up of an embedding that is tied to a head."""
    if weight.layout == "rows":
        return weight.data[ids]
    if weight.layout == "split":
        weight = _joined(weight)
    width = weight.data.shape[2]
    panel, row = ids // width, ids % width
    if weight.layout == "pairs":
        return _outputs_first(weight)[panel, row].flatten(1)[:, : weight.k]
    return _outputs_first(weight)[panel, row // (width // 2), row % (width // 2)]


def _joined(weight: Weight) -> Weight:
    return Weight(*joined(weight.data, weight.k), weight.n, weight.k)


def _outputs_first(weight: Weight) -> Tensor:
    """Panels seen as [panel, half of it, output in the half, k]; of pairs as [panel, output in it, pair of k, 2]."""
    if weight.layout == "pairs":
        return weight.data.transpose(1, 2)
    panels, k, width = weight.data.shape
    if weight.dtype == torch.float32:
        return weight.data.view(panels, k, 2, width // 2).permute(0, 2, 3, 1)
    return weight.data.view(panels, k, width // 2, 2).permute(0, 3, 2, 1)


@linear.cases(Tolerances(float32=1e-4))
def _cases(make: Inputs) -> Iterator[Case]:
    for label, rows, n, k, large in (
        ("one row", 1, 96, 64, False),
        ("odd sizes", 7, 50, 33, False),
        ("one output", 3, 1, 40, False),
        ("no rows", 0, 32, 16, False),
        ("k in blocks", 29, 72, 2100, False),
        ("SmolLM2 gate and up, 1 row", 1, 3072, 576, True),
        ("SmolLM2 gate and up, 16 rows", 16, 3072, 576, True),
        ("SmolLM2 down, 300 rows", 300, 576, 1536, True),
    ):
        w = make.normal(n, k, scale=k**-0.5)
        yield Case(label, (make.normal(rows, k), pack(w)), large=large)
        yield Case(f"{label}, as it came", (make.normal(rows, k), Weight(w, "rows", n, k)), large=large)
    fused = make.normal(5, 3, 48)
    yield Case("rows that stand apart", (fused[:, 1], pack(make.normal(40, 48, scale=0.1))))


@linear_silu_mul.cases(Tolerances(float32=1e-4))
def _gated_cases(make: Inputs) -> Iterator[Case]:
    for label, rows, n, k, large in (
        ("one row", 1, 128, 64, False),
        ("halves of no whole panels", 7, 100, 33, False),
        ("no rows", 0, 64, 16, False),
        ("k in blocks", 29, 128, 2100, False),
        ("SmolLM2 gate and up, 1 row", 1, 3072, 576, True),
        ("SmolLM2 gate and up, 512 rows", 512, 3072, 576, True),
    ):
        w = make.normal(n, k, scale=k**-0.5)
        yield Case(label, (make.normal(rows, k), pack(w)), large=large)


@rows_of.cases(Tolerances(float32=0.0, bfloat16=0.0))
def _row_cases(make: Inputs) -> Iterator[Case]:
    for label, ids, n, k, large in (
        ("a few", (3, 0, 49, 3), 50, 33, False),
        ("none", (), 40, 16, False),
        ("an even k", (39, 7), 40, 16, False),
        ("sixteen of SmolLM2's vocabulary", tuple(range(0, 48000, 3000)), 49152, 576, True),
    ):
        chosen = make.put(ids, torch.int64)
        yield Case(label, (pack(make.normal(n, k)), chosen), large=large)
