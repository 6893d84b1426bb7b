"""Rows of a weight that is kept in codes (grouped.py), as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op
from .grouped import GroupedWeight, codes_of_rows, dense, numbers_of, packings, some_weights


@op
def rows_of_grouped(weight: GroupedWeight, ids: Tensor) -> Tensor:
    """Rows `ids` [T] int64 of the matrix: [T, K] float32. The look-up of an embedding that is kept in codes."""
    codes = codes_of_rows(weight, ids)
    zeros = numbers_of(weight.zeros, ids) if isinstance(weight.zeros, Tensor) else weight.zeros
    mins = None if weight.mins is None else weight.mins.of_outputs(ids)
    few = replace(weight, planes=(codes,), layout="codes", n=len(ids), zeros=zeros, mins=mins)
    return dense(replace(few, scales=weight.scales.of_outputs(ids)))


@rows_of_grouped.cases(Tolerances(float32=0.0))
def _cases(make: Inputs) -> Iterator[Case]:
    for label, _, weight, large in some_weights(make):
        ids = make.put((weight.n - 1, 0, weight.n // 2, 0), torch.int64)
        for packed in packings(weight):
            yield Case(f"{label}, in {packed.layout}", (packed, ids), large=large)
    yield Case("none", (packed, make.put((), torch.int64)))
