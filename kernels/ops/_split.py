"""bfloat16 in three quarters of its bytes, without loss: how the layout `split` of matmul.py is read.

Sixteen values of a number's upper byte make up nearly all of a panel's: they become four bits that point into a table.
Panels of 16 or 32 outputs P, bytes [panels, 64 + R + 1536 U] for U = ceil(K P / 1024) units, one after the other:
header  the table of 16 upper bytes, int32 how many numbers are rare, P in a byte, in another how many inputs stand side
        by side (2: as in `pairs`; 1: as in `panels`), and nothing up to 64.
rare    R = 32 U + 128 rounded up to 64 bytes: of each number that the table lacks int32 its place in the panel, its 16
        bits, and nothing up to 8.
units   1,024 numbers as in `pairs` [512 / P, P, 2] or `panels` [1024 / P, P]: 512 bytes of pointers, then the lower
        bytes. 2 P bytes of pointers are of 4 P numbers, the first half of them in the lower bits. Of 2 P numbers byte
        16 l + 8 v + r is of number P v + 8 l + r.
"""

from __future__ import annotations

import torch
from torch import Tensor

HEADER, UNIT, NUMBERS = 64, 1536, 1024


def joined(data: Tensor, k: int) -> tuple[Tensor, str]:
    """The panels of K inputs as they are when not split, but for what fills them up, and the name of that layout:
    bfloat16 [panels, ceil(K / 2), P, 2] and `pairs`, or [panels, K, P] and `panels`.
    """
    width, together = data[0, 20:22].tolist()
    panels, units = len(data), -(-k * width // NUMBERS)
    tables, body = data[:, :16].long(), data[:, data.shape[1] - units * UNIT :].reshape(panels, units, UNIT)
    pointers = body[..., : NUMBERS // 2].reshape(panels, units, -1, 1, 2 * width)
    pointers = torch.cat((pointers & 15, pointers >> 4), dim=-2).flatten(1)  # [panels, 1024 U]
    bits = tables.gather(1, pointers.long()) << 8 | body[..., NUMBERS // 2 :].flatten(1)
    bits = bits.view(panels, -1, width // 8, 2, 8).transpose(2, 3).flatten(1)
    numbers = _with_rare(bits, data, units).to(torch.int16).view(torch.bfloat16)
    if together == 1:
        return numbers.view(panels, -1, width)[:, :k], "panels"
    return numbers.view(panels, -1, width, 2)[:, : -(-k // 2)], "pairs"


def _with_rare(bits: Tensor, data: Tensor, units: int) -> Tensor:
    """`bits` [panels, 1024 U] int64 with what the tables lack."""
    counts = data[:, 16:20].contiguous().view(torch.int32)
    listed = data[:, HEADER : HEADER + 32 * units + 128].contiguous().view(torch.int32).view(len(data), -1, 2)
    panel, at = (torch.arange(listed.shape[1]) < counts).nonzero(as_tuple=True)
    bits[panel, listed[panel, at, 0].long()] = listed[panel, at, 1].long()
    return bits
