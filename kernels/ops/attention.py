"""Causal attention of a ragged batch over the paged KV cache; a decode is a row of one query.

The reference serves on CPUs too: rows with equally many queries and about as many keys share one product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op


@op
def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    *,
    max_query: int,
    max_seq: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of `q` [T, Hq, D] over the caches [num_blocks, block_size, Hk, D], computed in float32; like q.

    Row r has the queries query_start[r] .. query_start[r + 1] (int32 [R + 1]; a row may be empty), the last of them
    at position seq_lens[r] - 1 (int32 [R]), and the blocks block_table[r] (int32 [R, max_blocks]). Position p sees
    the keys at p - window + 1 .. p, or 0 .. p. `softcap` c turns scores s into c tanh(s / c). `max_query` and
    `max_seq` bound the rows' lengths, so that a device need not be asked.
    """
    out = torch.empty_like(q)
    for rows in _alike(_rows(query_start, seq_lens, k_cache.shape[1], window)):
        tokens = torch.tensor([row.start for row in rows], device=q.device).unsqueeze(1)
        tokens = tokens + torch.arange(rows[0].length, device=q.device)  # [S, N]
        keys = _Keys.of(rows, block_table, k_cache.shape[1])
        out[tokens] = _attend(
            q[tokens].float().transpose(1, 2),  # [S, Hq, N, D]
            keys.gather(k_cache),
            keys.gather(v_cache),
            keys.visible(rows, window),
            scale,
            softcap,
        ).to(q.dtype)
    return out


@dataclass(frozen=True, slots=True)
class _Row:
    index: int
    start: int  # of its queries in the packed batch
    length: int
    seq_len: int
    first_block: int  # the first that its first query sees
    num_blocks: int


def _rows(query_start: Tensor, seq_lens: Tensor, block_size: int, window: int | None) -> Iterator[_Row]:
    starts = query_start.tolist()
    for index, seq_len in enumerate(seq_lens.tolist()):
        length = starts[index + 1] - starts[index]
        if length == 0:
            continue
        hidden = 0 if window is None else max(0, seq_len - length - window + 1)  # keys that no query sees
        first = hidden // block_size
        yield _Row(index, starts[index], length, seq_len, first, -(-seq_len // block_size) - first)


def _alike(rows: Iterable[_Row]) -> list[list[_Row]]:
    """Rows with as many queries and, within a factor of two, as many blocks: padding at most doubles what is read."""
    groups: dict[tuple[int, int], list[_Row]] = defaultdict(list)
    for row in rows:
        groups[row.length, (row.num_blocks - 1).bit_length()].append(row)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Keys:
    """Where S rows' keys lie, padded to the longest row: L positions."""

    blocks: Tensor  # [S, L / block_size]
    positions: Tensor  # [S, L]

    @classmethod
    def of(cls, rows: list[_Row], block_table: Tensor, block_size: int) -> _Keys:
        device = block_table.device
        longest = max(row.num_blocks for row in rows)
        first = torch.tensor([row.first_block for row in rows], device=device).unsqueeze(1)
        held = torch.tensor([row.num_blocks for row in rows], device=device).unsqueeze(1)
        index = first + torch.minimum(torch.arange(longest, device=device), held - 1)  # padding repeats the last block
        blocks = block_table[torch.tensor([row.index for row in rows], device=device)].gather(1, index)
        return cls(blocks, first * block_size + torch.arange(longest * block_size, device=device))

    def gather(self, cache: Tensor) -> Tensor:
        """[S, Hk, L, D] float32, heads outside: the products read keys one after another."""
        held = cache.index_select(0, self.blocks.flatten())
        by_row = held.view(len(self.blocks), -1, *cache.shape[2:]).transpose(1, 2)
        return by_row.to(torch.float32, memory_format=torch.contiguous_format).contiguous()

    def visible(self, rows: list[_Row], window: int | None) -> Tensor:
        """[S, 1, N, L] bool: which keys each query sees."""
        device = self.positions.device
        first = torch.tensor([row.seq_len - row.length for row in rows], device=device).unsqueeze(1)
        at = (first + torch.arange(rows[0].length, device=device)).unsqueeze(-1)  # [S, N, 1]
        keys = self.positions.unsqueeze(1)  # [S, 1, L]
        seen = keys <= at
        if window is not None:
            seen &= keys > at - window
        return seen.unsqueeze(1)


def _attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, softcap: float | None) -> Tensor:
    """[S, N, Hq, D] from q [S, Hq, N, D] and k, v [S, Hk, L, D]."""
    rows, heads, queries, dim = q.shape
    kv_heads = k.shape[1]
    if queries == 1:  # the heads that share keys are as good as queries, and cost one product
        q = q.reshape(rows, kv_heads, heads // kv_heads, dim)
    if softcap is None:
        bias = torch.zeros_like(visible, dtype=q.dtype).masked_fill_(~visible, -torch.inf)
        out = scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale, enable_gqa=q.shape[1] != kv_heads)
    else:
        shared = q.shape[1] // kv_heads
        scores = q @ k.repeat_interleave(shared, 1).transpose(2, 3) * scale
        scores = (scores / softcap).tanh() * softcap
        out = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v.repeat_interleave(shared, 1)
    return out.reshape(rows, heads, queries, dim).transpose(1, 2)


@paged_attention.cases(Tolerances(float32=2e-5, float16=4e-3))
def _cases(make: Inputs) -> Iterator[Case]:
    # (label, rows as (queries, keys), query heads, kv heads, head size, options, large)
    mixed = ((1, 5), (3, 3), (1, 40), (7, 23))
    llama = ((1, 300), (1, 33), (40, 40), (50, 600), (1, 900))
    for label, rows, heads, kv_heads, dim, options, large in (
        ("prefill, decode and chunk", mixed, 4, 2, 16, {}, False),
        ("window", mixed, 2, 1, 16, {"window": 6}, False),
        ("softcap", mixed, 2, 2, 24, {"softcap": 3.0}, False),
        ("empty row", ((1, 17), (0, 4), (1, 2)), 6, 2, 16, {}, False),
        ("few long rows", ((1, 700), (2, 530)), 2, 1, 16, {"window": 600}, False),
        ("odd head, long row beside short ones", ((1, 3), (1, 1500), (5, 9)), 6, 2, 45, {}, False),
        ("Phi 2", ((1, 200), (90, 300)), 4, 4, 80, {}, True),
        ("Llama 8B", llama, 32, 8, 128, {}, True),
        ("Llama 8B decode", ((1, 3000), (1, 17)), 32, 8, 128, {}, True),
        ("Gemma 2", llama, 8, 4, 256, {"window": 128, "softcap": 50.0}, True),
    ):
        yield Case(label, _ragged(make, rows, heads, kv_heads, dim), _bounds(rows, dim) | options, large=large)


def _bounds(rows: tuple[tuple[int, int], ...], dim: int) -> dict[str, float]:
    return {"max_query": max(n for n, _ in rows), "max_seq": max(s for _, s in rows), "scale": dim**-0.5}


def _ragged(
    make: Inputs, rows: tuple[tuple[int, int], ...], heads: int, kv_heads: int, dim: int, block_size: int = 16
) -> tuple[Tensor, ...]:
    held = [-(-seq_len // block_size) for _, seq_len in rows]
    free = iter(make.permutation(sum(held) + 1).tolist())
    table = [[next(free) for _ in range(n)] + [0] * (max(held) - n) for n in held]
    starts = [sum(n for n, _ in rows[:i]) for i in range(len(rows) + 1)]
    return (
        make.normal(starts[-1], heads, dim),
        make.normal(sum(held) + 1, block_size, kv_heads, dim),
        make.normal(sum(held) + 1, block_size, kv_heads, dim),
        make.put(starts, torch.int32),
        make.put([seq_len for _, seq_len in rows], torch.int32),
        make.put(table, torch.int32),
    )
