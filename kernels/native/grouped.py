"""Registers csrc/grouped.cpp: weights in codes, in panels as wide as the register tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core import pages
from ..ops.grouped import PLANES, GroupedWeight, Groups, codes_of_panels, matmul_grouped, packer, pair_order
from .build import DTYPES, INT, POINTER, function, library, takes

PANEL_WIDTH: int = library().aril_panel_width()
LAYOUT = "pairs" if library().aril_reads_pairs() else "panels"
NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.uint8: 3, torch.int8: 4}  # csrc/factors.h
VALUES = {"integers": 0, "e4m3": 1, "table": 2}  # csrc/grouped.cpp

_matmul = function("aril_matmul_grouped", *[POINTER] * 11, *[INT] * 14)
_pack_plane = function("aril_pack_plane", POINTER, POINTER, *[INT] * 7)
_pack_bytes = function("aril_pack_bytes", POINTER, POINTER, *[INT] * 6)
_pack_byte_pairs = function("aril_pack_byte_pairs", POINTER, POINTER, *[INT] * 6)


@packer("native", LAYOUT, unpack=codes_of_panels)
def pack_native(weight: GroupedWeight) -> GroupedWeight | None:
    """Panels as wide as the machine's register tile."""
    (codes,) = weight.planes
    if not codes.is_cpu:
        return None
    if weight.values == "table" and weight.bits == 3:  # the values of two planes are added up; of one they may be any
        assert weight.table is not None
        weight = replace(weight, bits=4, table=pad(weight.table, (0, 8)))
    return replace(
        weight,
        planes=tuple(_planes(codes, weight)),
        layout=LAYOUT,
        scales=_groups(weight.scales),
        zeros=_numbers(weight.zeros) if isinstance(weight.zeros, Tensor) else weight.zeros,
        mins=None if weight.mins is None else _groups(weight.mins),
    )


def _planes(codes: Tensor, weight: GroupedWeight) -> Iterator[Tensor]:
    if weight.bits == 8:
        yield _bytes(codes, weight)
        return
    shift = 0
    for width in PLANES[weight.bits]:
        fields = _in_pairs(codes, weight) if shift and LAYOUT == "pairs" else codes
        plane = pages.zeros((-(-weight.n // PANEL_WIDTH), -(-weight.k * width // 32), PANEL_WIDTH), torch.int32)
        threads = torch.get_num_threads()
        _pack_plane(plane.data_ptr(), fields.data_ptr(), *fields.shape, *fields.stride(), shift, width, threads)
        yield plane
        shift += width


def _bytes(codes: Tensor, weight: GroupedWeight) -> Tensor:
    (n, k), threads, panels = codes.shape, torch.get_num_threads(), -(-weight.n // PANEL_WIDTH)
    if LAYOUT == "pairs":
        plane, is_whole = (
            pages.zeros((panels, -(-k // 8) * 4, PANEL_WIDTH, 2), torch.uint8),
            weight.values == "integers",
        )
        _pack_byte_pairs(plane.data_ptr(), codes.data_ptr(), n, k, *codes.stride(), is_whole, threads)
        return plane
    plane = pages.zeros((panels, k, PANEL_WIDTH), torch.uint8)
    _pack_bytes(plane.data_ptr(), codes.data_ptr(), n, k, *codes.stride(), weight.values == "e4m3", threads)
    return plane


def _in_pairs(codes: Tensor, weight: GroupedWeight) -> Tensor:
    """The codes in the order of their fields in the high plane: [N, K filled up to whole words]."""
    fields = 32 // PLANES[weight.bits][1]
    filled = codes.new_zeros(len(codes), -(-weight.k // fields) * fields)
    filled[:, pair_order(weight)] = codes
    return filled


def _groups(numbers: Groups) -> Groups:
    coarse = None if numbers.coarse is None else _numbers(numbers.coarse)
    return Groups(_numbers(numbers.fine), coarse, numbers.span)


def _numbers(numbers: Tensor) -> Tensor:
    """[G, N] -> [panels, G, PANEL_WIDTH]."""
    filled = pad(numbers, (0, -numbers.shape[1] % PANEL_WIDTH))
    return pages.moved(filled.view(len(numbers), -1, PANEL_WIDTH).transpose(0, 1))


def reads(weight: GroupedWeight) -> bool:
    """Whether it lies as the kernels read it."""
    return weight.layout == LAYOUT and weight.planes[0].shape[2] == PANEL_WIDTH


@matmul_grouped.impl(
    "native",
    when=lambda x, weight: reads(weight) and takes(x),
    needs=f"float32 or bfloat16 rows on the CPU and a weight in panels of {PANEL_WIDTH}",
)
def matmul_grouped_native(x: Tensor, weight: GroupedWeight) -> Tensor:
    """Each row's result has the same bits whatever shares the call."""
    out = x.new_empty(x.shape[0], weight.n)
    shape = *out.shape, weight.k, x.stride(0), DTYPES[x.dtype]
    _matmul(out.data_ptr(), x.data_ptr(), *pointers(weight), *shape, *kinds(weight), torch.get_num_threads())
    return out


def pointers(weight: GroupedWeight) -> Iterator[int | None]:
    """Where all of it lies, in the order of csrc/grouped.cpp; None = there is no such thing."""
    mins = None if weight.mins is None else weight.mins.fine, None if weight.mins is None else weight.mins.coarse
    zeros = weight.zeros if isinstance(weight.zeros, Tensor) else None
    yield weight.planes[0].data_ptr()
    yield _pointer(weight.planes[1] if len(weight.planes) > 1 else None)
    yield from map(_pointer, (weight.scales.fine, weight.scales.coarse, *mins, zeros, weight.table, weight.order))


def kinds(weight: GroupedWeight) -> tuple[int, ...]:
    """What its codes and numbers are, in the order of csrc/grouped.cpp."""
    zero = 0 if isinstance(weight.zeros, Tensor) else weight.zeros
    mins = (0, 1) if weight.mins is None else (_types(weight.mins), weight.mins.span)
    return weight.bits, VALUES[weight.values], weight.group, zero, _types(weight.scales), weight.scales.span, *mins


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _types(numbers: Groups) -> int:
    return NUMBERS[numbers.fine.dtype] + (0 if numbers.coarse is None else 8 * NUMBERS[numbers.coarse.dtype])
