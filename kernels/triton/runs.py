"""The layout by which the Triton kernels read grouped codes: runs of codes in the same field of neighbouring words.

A weight is cut along K into steps of 8 runs (of 4 at 8 bits), so field i of word w of a step is code 32 i + w of the
step, or 16 i + w where runs are of 16. A kernel loads the words of a step once, and a shift and a mask make of them a
tile that is multiplied by a run of inputs: nothing moves between threads, and x is read as it lies. Words are as wide
as their fields need: bytes for a plane of 1 bit, 16 bits for one of 2, 32 bits for 4 and 8. After the planes of a
codebook come its numbers in bfloat16 and in float16.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..ops.grouped import PLANES, GroupedWeight, Groups, packer
from . import INTERPRETED

LAYOUT = "runs"
_WORDS = {8: torch.uint8, 16: torch.int16, 32: torch.int32}  # by bits


def run_of(weight: GroupedWeight) -> int:
    """Codes of a run: 32, or 16 where groups are small, because a step with many groups needs many registers."""
    return 16 if weight.group < 128 else 32


def num_fields(bits: int) -> int:
    """Fields of a word, in every plane of a weight of `bits` bits."""
    return min(8, 32 // max(PLANES[bits]))


def table_of(weight: GroupedWeight, dtype: torch.dtype) -> Tensor:
    """The codebook in `dtype`; interpreted kernels know only float32."""
    assert weight.table is not None
    if INTERPRETED or dtype == torch.float32:
        return weight.table
    return weight.planes[-2 if dtype == torch.bfloat16 else -1]


def _codes_of(weight: GroupedWeight) -> Tensor:
    fields, shift = num_fields(weight.bits), 0
    codes = torch.zeros((), dtype=torch.uint8, device=weight.planes[0].device)
    for plane, width in zip(weight.planes, PLANES[weight.bits], strict=False):
        words = plane.unflatten(1, (-1, run_of(weight)))
        parts = [((words >> (i * width)) & ((1 << width) - 1)).to(torch.uint8) for i in range(fields)]
        codes = codes | (torch.stack(parts, 2).flatten(1)[:, : weight.k] << shift)
        shift += width
    return codes


@packer("triton", LAYOUT, _codes_of)
def pack_runs(weight: GroupedWeight) -> GroupedWeight | None:
    """Layout `runs`, where Triton kernels run."""
    on_device = weight.planes[0].is_cuda or INTERPRETED
    return in_runs(weight) if on_device and not _holds_nan(weight) else None


def in_runs(weight: GroupedWeight) -> GroupedWeight:
    """Layout `runs` of a weight of layout `codes`."""
    (codes,), planes, shift = weight.planes, [], 0
    for width in PLANES[weight.bits]:
        planes.append(_plane((codes >> shift) & ((1 << width) - 1), width, num_fields(weight.bits), run_of(weight)))
        shift += width
    return replace(
        weight,
        planes=(*planes, *([] if weight.table is None else [weight.table.bfloat16(), weight.table.half()])),
        layout=LAYOUT,
        scales=_contiguous(weight.scales),
        zeros=weight.zeros.contiguous() if isinstance(weight.zeros, Tensor) else weight.zeros,
        mins=_contiguous(weight.mins) if weight.mins is not None else None,
    )


def _holds_nan(weight: GroupedWeight) -> bool:
    """The one e4m3 value that the kernel's arithmetic does not know, and no sound checkpoint has."""
    return weight.values == "e4m3" and bool(((weight.planes[0] & 0x7F) == 0x7F).any())


def _plane(codes: Tensor, width: int, fields: int, run: int) -> Tensor:
    """Fields [N, K] of `width` bits -> words [N, steps * run]."""
    steps = pad(codes, (0, -codes.shape[1] % (run * fields))).view(len(codes), -1, fields, run)
    words = steps[:, :, 0].to(torch.int32)
    for i in range(1, fields):
        words |= steps[:, :, i].to(torch.int32) << (i * width)
    return words.to(_WORDS[fields * width]).flatten(1)


def _contiguous(groups: Groups) -> Groups:
    coarse = groups.coarse.contiguous() if groups.coarse is not None else None
    return Groups(groups.fine.contiguous(), coarse, groups.span)
