"""Registers csrc/matmul.cpp: plain float32 and bfloat16 weights in panels of two vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.matmul import Weight, linear, pack_panels, packer
from .build import DTYPES, INT, POINTER, function, library, takes

PANEL_WIDTH: int = library().aril_panel_width()

_linear = function("aril_linear", POINTER, POINTER, POINTER, INT, INT, INT, INT, INT, INT, INT)


@packer("native")
def pack_native(w: Tensor) -> Weight | None:
    """Panels as wide as the machine's register tile."""
    return pack_panels(w, PANEL_WIDTH) if takes(w) else None


@linear.impl(
    "native",
    when=lambda x, weight: weight.layout == "panels" and weight.data.shape[2] == PANEL_WIDTH and takes(x),
    needs=f"float32 or bfloat16 rows on the CPU and a weight in panels of {PANEL_WIDTH}",
)
def linear_native(x: Tensor, weight: Weight) -> Tensor:
    """Each row's result has the same bits whatever shares the call."""
    out = x.new_empty(x.shape[0], weight.n)
    _linear(
        out.data_ptr(),
        x.data_ptr(),
        weight.data.data_ptr(),
        x.shape[0],
        weight.n,
        weight.k,
        x.stride(0),
        DTYPES[x.dtype],
        DTYPES[weight.dtype],
        torch.get_num_threads(),
    )
    return out
