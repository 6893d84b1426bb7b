"""Registers the look-up of csrc/grouped.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.grouped import GroupedWeight
from ..ops.grouped_rows import rows_of_grouped
from .build import INT, POINTER, function
from .grouped import PANEL_WIDTH, kinds, pointers, reads

_rows_of = function("aril_rows_of_grouped", *[POINTER] * 11, *[INT] * 11)


@rows_of_grouped.impl(
    "native", when=lambda weight, ids: reads(weight), needs=f"a weight in panels of {PANEL_WIDTH} on the CPU"
)
def rows_of_grouped_native(weight: GroupedWeight, ids: Tensor) -> Tensor:
    """A panel's codes are read for each row; only its own are kept."""
    ids = ids.contiguous()
    out = torch.empty(len(ids), weight.k, dtype=torch.float32)
    shape = len(ids), weight.k
    _rows_of(out.data_ptr(), ids.data_ptr(), *pointers(weight), *shape, *kinds(weight), torch.get_num_threads())
    return out
