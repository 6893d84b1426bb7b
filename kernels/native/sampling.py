"""Registers csrc/sampling.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.sampling import Greatest, draw_tokens, greatest
from .build import INT, POINTER, function

_greatest = function("aril_greatest", *[POINTER] * 3, *[INT] * 4)
_draw = function("aril_draw", *[POINTER] * 4, *[INT] * 4)


def _takes(x: Tensor) -> bool:
    return x.is_cpu and x.dtype is torch.float32 and x.stride(1) == 1 and x.shape[1] > 0


@greatest.impl("native", when=_takes, needs="float32 rows on the CPU, each in one piece")
def greatest_native(x: Tensor) -> Greatest:
    """One pass for the value; its place is looked for in what the cache still holds."""
    found = Greatest(x.new_empty(x.shape[0]), x.new_empty(x.shape[0], dtype=torch.int64))
    _greatest(
        found.values.data_ptr(), found.places.data_ptr(), x.data_ptr(), *x.shape, x.stride(0), torch.get_num_threads()
    )
    return found


@draw_tokens.impl(
    "native",
    when=lambda logits, rows, table: _takes(logits) and rows.is_contiguous() and table.is_contiguous(),
    needs="float32 logits on the CPU, each row in one piece",
)
def draw_tokens_native(logits: Tensor, rows: Tensor, table: Tensor) -> Tensor:
    """A row is one task; only tokens that can be drawn are sorted."""
    tokens = torch.empty_like(rows)
    _draw(
        tokens.data_ptr(),
        logits.data_ptr(),
        rows.data_ptr(),
        table.data_ptr(),
        len(rows),
        logits.shape[1],
        logits.stride(0),
        torch.get_num_threads(),
    )
    return tokens
