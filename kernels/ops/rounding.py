"""What rows become when they are quantised and read back, for formats whose activations are not kept in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op

E4M3_MAX = 448.0


@op
def round_to_e4m3(x: Tensor, group: int, scale: Tensor | None) -> Tensor:
    """x[T, K] divided by its scale, rounded to e4m3 (clamped to 448), times its scale: [T, K] in x's dtype.

    `scale` float32 [1] is the same for all; None = max|x| / 448 of each `group` inputs of each row (the last may be
    shorter). Nothing is written into x.
    """
    wide = x.float()
    if scale is not None:
        scales = scale.reshape(1, 1)
    else:
        groups = -(-x.shape[1] // group)
        padded = torch.nn.functional.pad(wide, (0, -wide.shape[1] % group)).view(len(x), groups, group)
        per_group = padded.abs().amax(-1) / E4M3_MAX
        per_group = torch.where(per_group == 0, torch.finfo(torch.float32).eps, per_group)
        scales = per_group.repeat_interleave(group, 1)[:, : wide.shape[1]]
    rounded = (wide / scales).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()
    return (rounded * scales).to(x.dtype)


@op
def round_to_integers(x: Tensor, bits: int, group: int, symmetric: bool) -> Tensor:
    """x[T, K] rounded to integers of `bits` bits, per `group` inputs of each row, and read back: [T, K] in x's dtype.

    The scale is that of compressed-tensors (ops/int8.py), for groups of a row.
    """
    steps = (1 << bits) - 1
    lowest = -(1 << (bits - 1))
    groups = -(-x.shape[1] // group)
    wide = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % group)).view(len(x), groups, group)
    low, high = wide.amin(-1, keepdim=True).clamp(max=0), wide.amax(-1, keepdim=True).clamp(min=0)
    scales = (torch.maximum(-low, high) * 2 if symmetric else high - low) / steps
    scales = torch.where(scales == 0, torch.finfo(torch.float32).eps, scales)
    zeros = torch.zeros_like(scales) if symmetric else torch.round(lowest - low / scales).clamp(lowest, lowest + steps)
    codes = (torch.round(wide / scales) + zeros).clamp(lowest, lowest + steps)
    return ((codes - zeros) * scales).flatten(1)[:, : x.shape[1]].to(x.dtype)


@round_to_e4m3.cases(Tolerances())
def _to_e4m3(make: Inputs) -> Iterator[Case]:
    for label, shape, group in (("rows", (5, 64), 64), ("groups", (3, 300), 128), ("no rows", (0, 32), 32)):
        yield Case(label, (make.normal(*shape), group, None))
    yield Case(
        "all of it, down to the subnormals", (make.normal(4, 256, scale=4.0), 256, make.put([1.0], torch.float32))
    )
    yield Case("small numbers", (make.normal(4, 256, scale=0.004), 256, make.put([1.0], torch.float32)))
    yield Case("too large", (make.normal(4, 256, scale=500.0), 256, make.put([1.0], torch.float32)))
    yield Case("Llama 8B down, rows", (make.normal(64, 14336), 14336, None), large=True)
    yield Case("Llama 8B down, groups", (make.normal(64, 14336), 128, None), large=True)


@round_to_integers.cases(Tolerances())
def _to_integers(make: Inputs) -> Iterator[Case]:
    for bits in (4, 8):
        yield Case(f"{bits} bits, rows", (make.normal(5, 64), bits, 64, True))
        yield Case(f"{bits} bits, groups, asymmetric", (make.normal(3, 300), bits, 128, False))
    yield Case("Llama 8B down, rows", (make.normal(64, 14336), 8, 14336, True), large=True)
