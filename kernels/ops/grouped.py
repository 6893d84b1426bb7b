"""x times the transpose of a weight that is kept as small codes: 2 to 8 bits each, scaled in groups along the inputs.

    W[n, k] = scale[g, n] * (value(code[n, k]) - zero[g, n]) + min[g, n]          g = k // group

Every format of the field is this with some terms left out: integers with zero points (GPTQ, AWQ, compressed-tensors)
or with minima in two levels (GGUF), codebooks (NF4, FP4, IQ4_NL) and e4m3 bytes (FP8).

Layouts of the codes of a weight [N, K]:
codes   one uint8 [N, K] (in any strides), as a format hands it over; `pack` makes one of the others.
rows    int32 [N, words] for each plane (PLANES: a code of 3, 5 or 6 bits is cut into a low and a high one), the fields
        in a row from the low bits on.
panels  words of each plane as in `rows`, [ceil(N / P), words, P]: P outputs side by side. Codes of 8 bits are uint8
        [ceil(N / P), K, P], those of e4m3 with output i beside output P / 2 + i, as in ops/matmul.py. The numbers of
        the groups lie alike: [ceil(N / P), G, P] instead of [G, N].
pairs   panels for machines that multiply pairs of bfloat16 (csrc/pairs.h). The fields of a high plane stand as their
        codes do among the low words that share its word: those of all lower halves, then those of all upper ones.
        Codes of 8 bits are [ceil(N / P), K / 2, P, 2] with k filled up to a multiple of 8 and output i of a panel in
        place PAIR_PLACES[i]; integers c are a sign and the seven bits of c - 128 or, where that is negative, 127 - c.
runs    the Triton provider's (triton/runs.py): like rows, with the fields of a plane in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op
from .fields import pack_fields, unpack_fields

PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}  # bits of a code -> bits of its planes, low first
PAIR_PLACES = torch.arange(32).view(4, 2, 4).transpose(0, 1).flatten()
E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()  # what each byte means

Values = Literal["integers", "e4m3", "table"]


@dataclass(frozen=True, slots=True)
class Groups:
    """A number for each group and output: `fine` [G, N], in two levels times `coarse` [ceil(G / span), N]."""

    fine: Tensor  # float32, float16, bfloat16, uint8 or int8
    coarse: Tensor | None = None  # float32 or float16
    span: int = 1  # groups under one coarse number

    def expanded(self) -> Tensor:
        """The numbers themselves: [G, N] float32; of panels, with the outputs that fill up the last one."""
        fine = _outputs_last(self.fine).float()
        if self.coarse is None:
            return fine
        return fine * _outputs_last(self.coarse).float().repeat_interleave(self.span, 0)[: len(fine)]

    def of_outputs(self, ids: Tensor) -> Groups:
        """The numbers of outputs `ids` [T] alone: [G, T]."""
        coarse = None if self.coarse is None else numbers_of(self.coarse, ids)
        return replace(self, fine=numbers_of(self.fine, ids), coarse=coarse)

    @property
    def nbytes(self) -> int:
        return self.fine.nbytes + (0 if self.coarse is None else self.coarse.nbytes)


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A matrix [n, k] in codes; `pack` gives it its device's layout, the functions of this file read it."""

    planes: tuple[Tensor, ...]
    layout: str
    n: int
    k: int
    bits: int
    group: int  # inputs in a group; the last one may be shorter
    scales: Groups
    zeros: Tensor | int = 0  # uint8 [G, N], or one for all
    mins: Groups | None = None
    values: Values = "integers"
    table: Tensor | None = None  # float32 [2 ** bits], the value of each code where `values` says so; bits is 4 or less
    order: Tensor | None = None  # int64 [K]: input k of the codes is x[:, order[k]] (GPTQ's act order)

    @property
    def num_groups(self) -> int:
        return -(-self.k // self.group)

    @property
    def nbytes(self) -> int:
        """Bytes of all that lasts."""
        others = [each for each in (self.zeros, self.table, self.order, self.mins) if not isinstance(each, int | None)]
        return sum(each.nbytes for each in (*self.planes, self.scales, *others))


@op
def matmul_grouped(x: Tensor, weight: GroupedWeight) -> Tensor:
    """x[T, K] times the transposed weight: [T, N] in x's dtype, accumulated in float32."""
    inputs = x if weight.order is None else x[:, weight.order]
    return torch_linear(inputs.float(), dense(weight, in_order=True)).to(x.dtype)


def dense(weight: GroupedWeight, *, in_order: bool = False) -> Tensor:
    """The matrix itself: [N, K] float32, as x meets it; `in_order`: as the codes lie."""
    codes = codes_of(weight)
    filled = torch.arange(weight.k, device=codes.device) // weight.group
    scales = weight.scales.expanded().t()[: weight.n, filled]
    values = _values(weight, codes)
    if isinstance(weight.zeros, Tensor):
        values = values - _outputs_last(weight.zeros).float().t()[: weight.n, filled]
    elif weight.zeros:
        values = values - weight.zeros
    found = values * scales
    if weight.mins is not None:
        found = found + weight.mins.expanded().t()[: weight.n, filled]
    if weight.order is None or in_order:
        return found
    return torch.empty_like(found).index_copy_(1, weight.order, found)


def _values(weight: GroupedWeight, codes: Tensor) -> Tensor:
    if weight.values == "integers":
        return codes.float()
    table = E4M3.to(codes.device) if weight.values == "e4m3" else weight.table
    assert table is not None
    return table[codes.long()]


def codes_of_rows(weight: GroupedWeight, ids: Tensor) -> Tensor:
    """The codes of outputs `ids` [T]: uint8 [T, K]."""
    if weight.layout not in ("panels", "pairs"):
        return codes_of(replace(weight, planes=tuple(_rows_of(plane, ids) for plane in weight.planes)))
    planes = tuple(_rows_of(plane, _places(weight, ids)) for plane in weight.planes)
    if weight.bits < 8:
        return _joined(weight, planes)
    kept = planes[0].flatten(1)[:, : weight.k]
    if weight.layout == "panels" or weight.values == "e4m3":
        return kept
    return torch.where(kept < 128, kept + 128, 255 - kept)


def _places(weight: GroupedWeight, ids: Tensor) -> Tensor:
    """Where outputs stand in panels."""
    width = weight.planes[0].shape[2]
    at, panel = ids % width, ids // width * width
    if weight.bits == 8 and weight.layout == "pairs":
        return panel + PAIR_PLACES.to(ids.device)[at]
    if weight.values == "e4m3":  # output i beside output width / 2 + i
        return panel + at % (width // 2) * 2 + at // (width // 2)
    return ids


def _rows_of(plane: Tensor, ids: Tensor) -> Tensor:
    """Rows of what lies by outputs, [N, .], or in panels [panels, ., P, .]: [T, .]; what is everyone's as it is."""
    if plane.dim() == 1:
        return plane
    return plane[ids] if plane.dim() == 2 else plane[ids // plane.shape[2], :, ids % plane.shape[2]]


def numbers_of(numbers: Tensor, ids: Tensor) -> Tensor:
    """The numbers of outputs `ids` [T] alone: [G, T]."""
    return numbers[:, ids] if numbers.dim() == 2 else _rows_of(numbers, ids).t()


def _outputs_last(numbers: Tensor) -> Tensor:
    """[G, N] as it is or out of panels, with the outputs that fill up the last one."""
    return numbers if numbers.dim() == 2 else numbers.transpose(0, 1).flatten(1)


Packer = Callable[[GroupedWeight], GroupedWeight | None]
Unpacker = Callable[[GroupedWeight], Tensor]
_packers: dict[str, Packer] = {}  # by provider of matmul_grouped
_unpackers: dict[str, Unpacker] = {}  # by layout


def packer(provider: str, layout: str, unpack: Unpacker) -> Callable[[Packer], Packer]:
    """Register `layout`, by which `provider` multiplies, and how its codes are read back (uint8 [N, K]).

    The packer takes a weight in layout `codes`; its answer None leaves the weight to the next provider.
    """

    def register(make: Packer) -> Packer:
        _packers[provider], _unpackers[layout] = make, unpack
        return make

    return register


def pack(weight: GroupedWeight) -> GroupedWeight:
    """A weight of layout `codes` in the layout of the provider that will multiply by it."""
    for provider in matmul_grouped.providers():
        packed = _packers[provider](weight) if provider in _packers else None
        if packed is not None:
            return packed
    return pack_rows(weight)


def packings(weight: GroupedWeight) -> Iterator[GroupedWeight]:
    """A weight of layout `codes` in `rows` and in the layout of every provider that can run here."""
    yield pack_rows(weight)
    for provider in matmul_grouped.providers():
        packed = _packers[provider](weight) if provider in _packers else None
        if packed is not None:
            yield packed


def pack_rows(weight: GroupedWeight) -> GroupedWeight:
    """Layout `rows` of a weight of layout `codes`."""
    (codes,), planes, shift = weight.planes, [], 0
    for width in PLANES[weight.bits]:
        planes.append(pack_fields((codes >> shift) & ((1 << width) - 1), width))
        shift += width
    return replace(weight, planes=tuple(planes), layout="rows")


def codes_of(weight: GroupedWeight) -> Tensor:
    """The codes of any layout: uint8 [N, K]."""
    if weight.layout == "codes":
        return weight.planes[0]
    return _unpackers[weight.layout](weight)


def _joined(weight: GroupedWeight, planes: tuple[Tensor, ...]) -> Tensor:
    """The codes of planes of words [N, words]: uint8 [N, K]."""
    widths = PLANES[weight.bits]
    low, *high = (unpack_fields(plane, width, weight.k) for plane, width in zip(planes, widths, strict=True))
    if high and weight.layout == "pairs":
        high = [unpack_fields(planes[1], widths[1], planes[1].shape[1] * 32 // widths[1])[:, pair_order(weight)]]
    return low | (high[0] << widths[0]) if high else low


def pair_order(weight: GroupedWeight) -> Tensor:
    """For each input the field of layout `pairs`' high plane that belongs to it: [K] int64."""
    low, high = PLANES[weight.bits]
    half, all_of_word = 16 // low, 32 // high
    k = torch.arange(weight.k, device=weight.planes[0].device)
    word, at = k // all_of_word * all_of_word, k % all_of_word
    return word + at // half % 2 * (all_of_word // 2) + at // (2 * half) * half + at % half


def codes_of_panels(weight: GroupedWeight) -> Tensor:
    """The codes of layouts `panels` and `pairs`."""
    return codes_of_rows(weight, torch.arange(weight.n, device=weight.planes[0].device))


_unpackers["rows"] = lambda weight: _joined(weight, weight.planes)


@matmul_grouped.cases(Tolerances(float32=1e-4))
def _cases(make: Inputs) -> Iterator[Case]:
    for label, rows, weight, large in some_weights(make):
        x = make.normal(rows, weight.k)
        for packed in packings(weight):
            yield Case(f"{label}, in {packed.layout}", (x, packed), large=large)


def some_weights(make: Inputs) -> Iterator[tuple[str, int, GroupedWeight, bool]]:
    """Of every kind, in layout `codes`: (label, rows to multiply, weight, whether it is of serving size)."""

    def weight(n: int, k: int, bits: int, group: int, **more: object) -> GroupedWeight:
        groups = -(-k // group)
        scales = Groups(make.normal(groups, n, scale=2.0**-bits * k**-0.5, dtype=torch.float16))
        codes = make.integers(1 << bits, n, k, dtype=torch.uint8)
        made = GroupedWeight((codes,), "codes", n, k, bits, group, scales, zeros=1 << (bits - 1))
        return replace(made, **more)  # type: ignore[arg-type]  # mypy knows no partial records

    def numbers(*shape: int) -> Groups:
        return Groups(make.normal(*shape, scale=0.01, dtype=torch.float32))

    for bits in PLANES:
        yield f"{bits} bits, one row", 1, weight(96, 128, bits, 32), False
        yield f"{bits} bits, some rows", 7, weight(50, 96, bits, 16), False
    yield "a group that k does not fill", 3, weight(40, 200, 4, 128), False
    yield "k that no word divides", 3, weight(33, 70, 3, 70), False
    yield "no rows", 0, weight(32, 64, 4, 32), False
    yield "k in blocks", 29, weight(72, 2112, 4, 64), False
    yield "zero points", 5, weight(72, 128, 4, 32, zeros=make.integers(16, 4, 72, dtype=torch.uint8)), False
    yield "minima", 5, weight(72, 128, 4, 32, zeros=0, mins=numbers(4, 72)), False
    coarse, fine = (make.normal(2, 48, scale=scale, dtype=torch.float16) for scale in (1e-3, 1e-4))
    two_levels = Groups(make.integers(64, 16, 48, dtype=torch.uint8), coarse, 8)
    yield "two levels", 4, weight(48, 512, 5, 32, scales=two_levels, zeros=0, mins=two_levels), False
    signed = Groups((make.integers(256, 16, 48) - 128).to(torch.int8), fine[:1], 16)
    yield "signed scales", 4, weight(48, 256, 6, 16, scales=signed), False
    yield "float32 scales", 4, weight(48, 256, 4, 64, scales=numbers(4, 48)), False
    yield "bfloat16 scales", 4, weight(48, 256, 8, 256, scales=Groups(numbers(1, 48).fine.bfloat16())), False
    table = make.normal(16, dtype=torch.float32)
    yield "a codebook", 4, weight(48, 128, 4, 64, values="table", table=table, zeros=0), False
    finite = make.integers(127, 80, 288, dtype=torch.uint8) + 128 * make.integers(2, 80, 288, dtype=torch.uint8)
    fp8 = weight(80, 288, 8, 128, values="e4m3", zeros=0, scales=Groups(numbers(3, 80).fine * 0.01))
    yield "e4m3 bytes in blocks", 5, replace(fp8, planes=(finite,)), False
    yield "act order", 6, weight(40, 128, 4, 32, order=make.permutation(128)), False
    yield "SmolLM2 gate and up, 4 bits, 1 row", 1, weight(3072, 576, 4, 64), True
    yield "SmolLM2 gate and up, 4 bits, 16 rows", 16, weight(3072, 576, 4, 64), True
    yield "SmolLM2 down, 8 bits, 300 rows", 300, weight(576, 1536, 8, 32), True
