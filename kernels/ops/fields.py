"""Small integers in 32-bit words: field i of a row is bits i * bits .. (i + 1) * bits - 1 of its words, little-endian.

The dense stream of every checkpoint format (3-bit fields straddle words), and of the packed layouts here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op


@op
def unpack_fields(words: Tensor, bits: int, count: int) -> Tensor:
    """words[R, W] int32 (in any strides) -> its first `count` fields of 1 to 8 bits in each row: uint8 [R, count]."""
    first = torch.arange(count, device=words.device) * bits
    at, shift = first >> 5, first & 31
    pairs = words.long() & 0xFFFFFFFF
    last = pairs.shape[1] - 1
    both = pairs[:, at] | (pairs[:, (at + 1).clamp(max=last)] << 32)
    return ((both >> shift) & ((1 << bits) - 1)).to(torch.uint8)


@op
def pack_fields(codes: Tensor, bits: int) -> Tensor:
    """codes[R, C] uint8, each under 2 ** bits -> words [R, ceil(C * bits / 32)] int32; bits is 1, 2, 4 or 8."""
    per_word = 32 // bits
    filled = torch.nn.functional.pad(codes, (0, -codes.shape[1] % per_word)).view(len(codes), -1, per_word)
    shifts = torch.arange(per_word, device=codes.device) * bits
    words = (filled.long() << shifts).sum(-1)
    return torch.where(words > 0x7FFFFFFF, words - (1 << 32), words).to(torch.int32)


@unpack_fields.cases(Tolerances())
def _unpacked(make: Inputs) -> Iterator[Case]:
    for bits in range(1, 9):
        words = (make.integers(1 << 32, 6, 2 * bits) - (1 << 31)).to(torch.int32)
        yield Case(f"{bits} bits", (words, bits, 64))
        yield Case(f"{bits} bits, some of them", (words, bits, 50))
    words = (make.integers(1 << 32, 24, 40) - (1 << 31)).to(torch.int32)
    yield Case("down the columns", (words.t(), 3, 256))


@pack_fields.cases(Tolerances())
def _packed(make: Inputs) -> Iterator[Case]:
    for bits in (1, 2, 4, 8):
        yield Case(f"{bits} bits", (make.integers(1 << bits, 5, 96, dtype=torch.uint8), bits))
        yield Case(f"{bits} bits, a last word in part", (make.integers(1 << bits, 5, 45, dtype=torch.uint8), bits))
