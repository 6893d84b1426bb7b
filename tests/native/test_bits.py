"""A row's result has the same bits in every company: what a request gets does not depend on who shares its step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from aril.kernels import dispatch
from aril.kernels.ops.attention import paged_attention
from aril.kernels.ops.lora import DeltaRows, add_delta_
from aril.kernels.ops.matmul import linear, pack
from torch import Tensor

pytestmark = pytest.mark.skipif("native" not in linear.providers(), reason=dispatch.explain(linear))

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 64, 16


@pytest.fixture(autouse=True)
def _native_and_seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with linear.force("native"), paged_attention.force("native"), add_delta_.force("native"):
        yield


@DTYPES
@pytest.mark.parametrize("k", [64, 1536], ids="k={}".format)
def test_a_row_times_a_weight_is_the_same_alone_and_in_a_batch(dtype: torch.dtype, k: int) -> None:
    x, weight = torch.randn(130, k, dtype=dtype), pack(torch.randn(80, k, dtype=dtype))
    together = linear(x, weight)
    for rows in (slice(0, 1), slice(3, 10), slice(57, 130)):
        assert torch.equal(linear(x[rows], weight), together[rows])


def attend(
    q: Tensor, caches: tuple[Tensor, Tensor], table: Tensor, rows: list[tuple[int, int]], **options: int
) -> Tensor:
    """Attention of rows (queries, keys) that share one block table."""
    starts = [sum(n for n, _ in rows[:i]) for i in range(len(rows) + 1)]
    lengths = [seq_len for _, seq_len in rows]
    return paged_attention(
        q,
        *caches,
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        table.expand(len(rows), -1).contiguous(),
        max_query=max(n for n, _ in rows),
        max_seq=max(lengths),
        scale=DIM**-0.5,
        **options,  # type: ignore[arg-type]  # a window
    )


@DTYPES
@pytest.mark.parametrize("options", [{}, {"window": 50}], ids=["all", "window"])
def test_a_query_is_the_same_in_a_prompt_in_pieces_and_alone(dtype: torch.dtype, options: dict[str, int]) -> None:
    length = 150
    table = torch.randperm(12, dtype=torch.int32)[None]
    caches = (torch.randn(12, BLOCK, KV_HEADS, DIM, dtype=dtype), torch.randn(12, BLOCK, KV_HEADS, DIM, dtype=dtype))
    q = torch.randn(length, HEADS, DIM, dtype=dtype)
    prompt = attend(q, caches, table, [(length, length)], **options)
    pieces = attend(q, caches, table, [(32, 32), (70, 102), (48, length)], **options)
    decodes = attend(q, caches, table, [(1, at + 1) for at in range(length)], **options)
    assert torch.equal(pieces, prompt)
    assert torch.equal(decodes, prompt)


@DTYPES
def test_an_adapter_adds_the_same_to_a_row_in_any_company(dtype: torch.dtype) -> None:
    k, n, rank = 96, 48, 13
    arena = torch.randn(2 * rank * (k + n), dtype=dtype)
    table = torch.tensor([[[0, 0, 0]], [[0, rank * k, rank]], [[rank * (k + n), rank * (2 * k + n), rank]]])
    x, y = torch.randn(40, k, dtype=dtype), torch.randn(40, n, dtype=dtype)
    slots = [0, 1, 2, 1, 1] * 8

    def added(rows: slice) -> Tensor:
        result = y[rows].clone()
        add_delta_(result, x[rows], arena, table, DeltaRows.build(slots[rows], "cpu", 2), ((0, n),))
        return result

    together = added(slice(0, 40))
    for rows in (slice(1, 2), slice(2, 9), slice(0, 40, 5)):
        assert torch.equal(added(rows), together[rows])
