"""A row's result has the same bits in every company: what a request gets does not depend on who shares its step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from aril.kernels import dispatch
from aril.kernels.ops.activation import silu_mul
from aril.kernels.ops.attention import paged_attention
from aril.kernels.ops.lora import ALIGN, DeltaRows, add_delta_
from aril.kernels.ops.matmul import linear, linear_silu_mul, pack
from torch import Tensor

pytestmark = pytest.mark.skipif("native" not in linear.providers(), reason=dispatch.explain(linear))

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
HEADS, KV_HEADS, BLOCK = 6, 2, 16


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


@pytest.mark.parametrize("rows", [1, 7, 130])
def test_a_float32_result_of_bfloat16_is_what_its_bfloat16_result_was_rounded_from(rows: int) -> None:
    x, weight = torch.randn(rows, 576).bfloat16(), torch.randn(80, 576).bfloat16()
    wide = linear(x, pack(weight), torch.float32)
    assert torch.equal(wide.bfloat16(), linear(x, pack(weight)))
    assert torch.allclose(wide, x.float() @ weight.float().t(), rtol=1e-4, atol=1e-3)


@DTYPES
@pytest.mark.parametrize("rows", [1, 7, 130])
@pytest.mark.parametrize("k", [64, 2100], ids="k={}".format)
def test_a_gate_inside_of_a_product_has_the_bits_of_one_behind_it(dtype: torch.dtype, rows: int, k: int) -> None:
    x, weight = torch.randn(rows, k, dtype=dtype), pack(torch.randn(192, k).mul(k**-0.5).to(dtype))
    with linear_silu_mul.force("native"), silu_mul.force("native"):
        assert torch.equal(linear_silu_mul(x, weight), silu_mul(linear(x, weight)))


def attend(
    q: Tensor, caches: tuple[Tensor, Tensor], table: Tensor, rows: list[tuple[int, int]], **options: float
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
        scale=q.shape[-1] ** -0.5,
        **options,  # type: ignore[arg-type]  # a window
    )


def cache_of(
    blocks: int, dim: int, dtype: torch.dtype, block: int = BLOCK, kv_heads: int = KV_HEADS
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """A block table of one row, and its keys and values."""
    shape = blocks, block, kv_heads, dim
    table = torch.randperm(blocks, dtype=torch.int32)[None]
    return table, (torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype))


@DTYPES
@pytest.mark.parametrize("options", [{}, {"window": 50}], ids=["all", "window"])
@pytest.mark.parametrize("dim", [45, 64, 80, 128], ids="dim={}".format)
def test_a_query_is_the_same_in_a_prompt_in_pieces_and_alone(
    dtype: torch.dtype, dim: int, options: dict[str, int]
) -> None:
    length = 150
    table, caches = cache_of(12, dim, dtype)
    q = torch.randn(length, HEADS, dim, dtype=dtype)
    prompt = attend(q, caches, table, [(length, length)], **options)
    pieces = attend(q, caches, table, [(32, 32), (70, 102), (48, length)], **options)
    decodes = attend(q, caches, table, [(1, at + 1) for at in range(length)], **options)
    assert torch.equal(pieces, prompt)
    assert torch.equal(decodes, prompt)


@pytest.mark.parametrize("options", [{}, {"window": 290}, {"softcap": 5.0}], ids=["all", "window", "softcap"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block"),
    [(9, 3, 64, 16), (16, 1, 96, 32), (4, 4, 128, 16), (8, 1, 256, 16), (20, 1, 64, 16), (6, 3, 64, 8)],
    ids=str,
)
def test_a_query_far_into_a_row_is_the_same_in_every_company(
    heads: int, kv_heads: int, dim: int, block: int, options: dict[str, float]
) -> None:
    """Whichever way its heads are computed: many queries by blocks of them, few from the cache, some heads at once."""
    length, dtype = 700, torch.bfloat16
    table, caches = cache_of(length // block + 1, dim, dtype, block, kv_heads)
    q = torch.randn(length, heads, dim, dtype=dtype)
    prompt = attend(q, caches, table, [(length, length)], **options)
    pieces = attend(q, caches, table, [(1, 1), (2, 3), (3, 6), (254, 260), (100, 360), (340, length)], **options)
    at = [0, 15, 31, 32, 200, 255, 256, 257, 289, 290, 511, 512, 543, 698, 699]
    decodes = attend(q[at], caches, table, [(1, 1 + each) for each in at], **options)
    beside_a_piece = attend(q[[699, *range(600)]], caches, table, [(1, length), (600, 600)], **options)
    assert torch.equal(pieces, prompt)
    assert torch.equal(decodes, prompt[at])
    assert torch.equal(beside_a_piece, prompt[[699, *range(600)]])


@pytest.mark.parametrize("filler", [torch.nan, torch.inf], ids=str)
def test_what_a_block_holds_past_the_end_of_a_row_is_not_seen(filler: float) -> None:
    length = 37
    table, caches = cache_of(4, 64, torch.bfloat16)
    q = torch.randn(1, HEADS, 64, dtype=torch.bfloat16)
    before = attend(q, caches, table, [(1, length)])
    for cache in caches:
        cache[table[0, 2], length - 32 :] = filler
        cache[table[0, 3]] = filler
    assert torch.equal(attend(q, caches, table, [(1, length)]), before)


@DTYPES
def test_a_long_row_is_the_same_alone_where_threads_share_it(dtype: torch.dtype) -> None:
    length = 3000
    table, caches = cache_of(length // BLOCK + 1, 64, dtype)
    q = torch.randn(40, HEADS, 64, dtype=dtype)
    together = attend(q, caches, table, [(1, length - at) for at in range(40)])
    assert torch.equal(attend(q[:1], caches, table, [(1, length)]), together[:1])
    assert torch.equal(attend(q.flip(0), caches, table, [(40, length)]).flip(0), together)


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


@DTYPES
def test_threads_do_not_meet_in_what_an_adapter_adds(dtype: torch.dtype) -> None:
    """A tile of one token fills up with zeros what it has no ranks for: that must be nobody else's."""
    rank, k, n, tokens = 64, 2048, 64, 9
    arena = torch.randn(rank * (k + n), dtype=dtype)
    table = torch.tensor([[[0, 0, 0]], [[0, rank * k, rank]]])
    x, y = torch.randn(tokens, k, dtype=dtype), torch.randn(tokens, n, dtype=dtype)

    def added() -> Tensor:
        result = y.clone()
        add_delta_(result, x, arena, table, DeltaRows.build([1] * tokens, "cpu", 2), ((0, n),))
        return result

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = added()
        torch.set_num_threads(2)
        assert all(torch.equal(added(), alone) for _ in range(300))
    finally:
        torch.set_num_threads(before)


@DTYPES
@pytest.mark.parametrize("rank", [2, 16, 37, 100], ids="rank={}".format)
@pytest.mark.parametrize("k", [64, 100], ids="k={}".format)
def test_an_adapter_adds_the_same_to_a_prompt_in_pieces_of_any_length(dtype: torch.dtype, k: int, rank: int) -> None:
    """Few tokens and many go through unlike code, tiny numbers and columns that fill no vector as well."""
    n, tokens = 75, 130
    a, b = torch.randn(rank, k, dtype=dtype), torch.randn(rank, n, dtype=dtype)
    b[: rank // 2] *= 1e-38
    a_size, b_size = -(-a.numel() // ALIGN) * ALIGN, b.numel()
    arena = torch.zeros(a_size + b_size, dtype=dtype)
    arena[: a.numel()], arena[a_size:] = a.reshape(-1), b.reshape(-1)
    table = torch.tensor([[[0, 0, 0]], [[0, a_size, rank]]])
    x, y = torch.randn(tokens, k, dtype=dtype), torch.randn(tokens, n, dtype=dtype)
    y[:, 1::2] *= 1e-38

    def added(rows: slice) -> Tensor:
        result = y[rows].clone()
        add_delta_(result, x[rows], arena, table, DeltaRows.build([1] * len(result), "cpu", 1), ((0, n),))
        return result

    together = added(slice(0, tokens))
    for length in (1, 2, 3, 5, 16, 17, 40, 70):
        for start in (0, 7, tokens - length):
            assert torch.equal(added(slice(start, start + length)), together[start : start + length])
