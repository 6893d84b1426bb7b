"""GPTQ's zero points: what a file stores instead of them, and what AutoGPTQ lost on the way.

`gptq` files store each less one, `gptq_v2` files as they are. GPTQModel takes the ones away from whole words, so that a
zero point of 0 borrows from its neighbours; adding them to whole words gives all back. AutoGPTQ writes 0 - 1 as 32 set
bits, which overwrites the fields above it in its word: those are lost, and read as AutoGPTQ reads them. Its hand shows
where every field of set bits has nothing but set bits above it. Values of 3 bits are counted one by one by all tools.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.log import event, get_logger
from ...kernels.ops.fields import unpack_fields

ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}  # a one in each field of a word
SHOWN = 8  # names in a message

log = get_logger(__name__)


def zero_points(qzeros: Tensor, bits: int, outputs: int, *, less_one: bool, lossy: bool) -> tuple[Tensor, bool]:
    """Packed words [G, outputs * bits / 32] int32 -> zero points [G, outputs] uint8, and whether some were lost.

    `less_one`: they are stored less one; `lossy`: by a tool that may have overwritten some.
    """
    if not less_one:
        return unpack_fields(qzeros, bits, outputs), False
    each = (unpack_fields(qzeros, bits, outputs) + 1).bitwise_and_((1 << bits) - 1)
    lost = _overwritten(qzeros, bits)
    if not lossy:
        lost = torch.zeros_like(lost)
    if bits == 3:
        return each, bool(lost.any())
    whole = unpack_fields(qzeros + ONES[bits], bits, outputs)
    return torch.where(lost.repeat_interleave(32 // bits, 1), each, whole), bool(lost.any())


def _overwritten(words: Tensor, bits: int) -> Tensor:
    """Of each word, whether AutoGPTQ wrote a zero point of 0 over others in it; of none where another tool packed."""
    first = torch.arange(words.shape[1]) % 3 if bits == 3 else torch.zeros(words.shape[1], dtype=torch.int64)
    lost, others = (torch.zeros(words.shape, dtype=torch.bool) for _ in range(2))
    for at in range(32 // bits):
        shifts = (first + at * bits).int()  # of the fields that lie in one word
        rest = words >> shifts
        lost |= (rest == -1) & (shifts + bits < 32)
        others |= ((rest + 1) & ((1 << bits) - 1) == 0) & (rest != -1)
    return lost & ~others.any()


class Losses:
    """Gathers the modules that lost zero points; says so once, when the last module has been read."""

    def __init__(self) -> None:
        self._awaited = 0
        self._lost: list[str] = []

    def expect(self) -> None:
        """One more module will be read."""
        self._awaited += 1

    def note(self, name: str, lost: bool) -> None:
        """Module `name` has been read."""
        self._awaited -= 1
        if lost:
            self._lost.append(name)
        if self._awaited == 0 and self._lost:
            more = f" and {len(self._lost) - SHOWN} more" if len(self._lost) > SHOWN else ""
            log.warning(
                event(
                    "zero_points_lost",
                    layers=", ".join(self._lost[:SHOWN]) + more,
                    cause="AutoGPTQ overwrites the neighbours of a zero point that is 0; the file holds them no more",
                    remedy="quantise again, symmetric or with checkpoint_format gptq_v2",
                )
            )
            self._lost = []
