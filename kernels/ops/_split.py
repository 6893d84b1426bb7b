"""bfloat16 in three quarters of its bytes, without loss: how the layout `split` of matmul.py is read.

Sixteen values of a number's upper byte make up nearly all of a panel's: they become four bits that point into a table.
Panels of 32 outputs, bytes [P, 64 + R + 1536 U] for U = ceil(K / 32) units of inputs, one after the other:
header  the table of 16 upper bytes, int32 how many numbers are rare, and nothing up to 64.
rare    R = 32 U rounded up to 64 bytes: of each number that the table lacks int32 its place in the panel, its 16 bits,
        and nothing up to 8.
units   1,024 numbers as in `pairs` [16, 32, 2]: 512 bytes of pointers, then the lower bytes. 64 bytes of pointers are
        of 128 numbers, the first half of them in the lower bits. Of 64 numbers byte 16 l + 8 v + r is of number
        32 v + 8 l + r.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH = 32
HEADER, UNIT, NUMBERS = 64, 1536, 1024


def joined(data: Tensor, k: int) -> Tensor:
    """The panels [P, bytes] of K inputs as pairs [P, 16 U, 32, 2] bfloat16."""
    panels, units = len(data), -(-k // WIDTH)
    tables, body = data[:, :16].long(), data[:, data.shape[1] - units * UNIT :].reshape(panels, units, UNIT)
    pointers = body[..., : NUMBERS // 2].reshape(panels, units, 8, 1, 64)
    pointers = torch.cat((pointers & 15, pointers >> 4), dim=-2).flatten(1)  # [P, 1024 U]
    bits = tables.gather(1, pointers.long()) << 8 | body[..., NUMBERS // 2 :].flatten(1)
    bits = bits.view(panels, -1, 4, 2, 8).transpose(2, 3).flatten(1)
    return _with_rare(bits, data, units).to(torch.int16).view(torch.bfloat16).view(panels, -1, WIDTH, 2)


def _with_rare(bits: Tensor, data: Tensor, units: int) -> Tensor:
    """`bits` [P, 1024 U] int64 with what the tables lack."""
    counts = data[:, 16:20].contiguous().view(torch.int32)
    listed = data[:, HEADER : HEADER + 32 * units].contiguous().view(torch.int32).view(len(data), -1, 2)
    panel, at = (torch.arange(listed.shape[1]) < counts).nonzero(as_tuple=True)
    bits[panel, listed[panel, at, 0].long()] = listed[panel, at, 1].long()
    return bits
