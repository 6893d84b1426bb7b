"""Registers the masks of csrc/sampling.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.masks import mask_tokens_
from .build import INT, POINTER, function

_mask = function("aril_mask", *[POINTER] * 3, *[INT] * 5)


@mask_tokens_.impl(
    "native",
    when=lambda logits, rows, bits: (
        logits.is_cpu
        and logits.dtype is torch.float32
        and logits.stride(1) == 1
        and rows.is_contiguous()
        and bits.is_contiguous()
    ),
    needs="float32 logits on the CPU, each row in one piece",
)
def mask_tokens_native(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """A row is one task; whole words of 32 tokens are passed over or filled."""
    _mask(
        logits.data_ptr(),
        rows.data_ptr(),
        bits.data_ptr(),
        len(rows),
        logits.shape[1],
        logits.stride(0),
        bits.shape[1],
        torch.get_num_threads(),
    )
