"""What is brought into the cache for the next call changes no number of the product that brings it."""

from __future__ import annotations

import pytest
import torch
from aril.kernels import dispatch
from aril.kernels.ops.lora import DeltaRows, foresee_delta
from aril.kernels.ops.matmul import linear, pack
from torch import Tensor

pytestmark = pytest.mark.skipif("native" not in linear.providers(), reason=dispatch.explain(linear))

K, SIZES = 96, (64, 16, 32)
PARTS = ((0, 64), (64, 16), (80, 32))


def adapters(ranks: list[tuple[int, ...]], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """An arena with gaps between the parts of slots of such ranks, and its table."""
    at, entries = 0, []
    for slot in ranks:
        for rank, size in zip(slot, SIZES, strict=True):
            entries.append((at, at + rank * K, rank))
            at += rank * (K + size) + 128
    return torch.randn(at, dtype=dtype), torch.tensor(entries).view(len(ranks), len(SIZES), 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 7, 16, 96, 97])
@pytest.mark.parametrize(
    "ranks",
    [[(0, 0, 0), (8, 8, 8)], [(0, 0, 0), (0, 3, 0), (0, 0, 0), (64, 0, 1)], [(0, 0, 0), (0, 0, 0)]],
    ids=["one adapter", "uneven ones", "one that adds nothing"],
)
@pytest.mark.parametrize("outputs", [16, 240])
def test_a_product_has_the_same_bits_whatever_is_foreseen(
    dtype: torch.dtype, rows: int, ranks: list[tuple[int, ...]], outputs: int
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, K, dtype=dtype), pack(torch.randn(outputs, K, dtype=dtype))
    arena, table = adapters(ranks, dtype)
    slots = [i % len(ranks) for i in range(rows)]
    with linear.force("native"), foresee_delta.force("native"):
        alone = linear(x, weight)
        foresee_delta(arena, table, DeltaRows.build(slots, "cpu", len(ranks)), PARTS, K)
        assert torch.equal(linear(x, weight), alone)
