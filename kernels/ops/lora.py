"""What the adapters add to one Linear: y[i] += (x[i] A^T) B, with the A and B of row i's adapter.

Every loaded adapter's A and B of every Linear lie in one flat arena; a table says where, and of which rank. So ranks
and target modules mix in one call, an adapter costs what its own rank costs, and no adapter is an adapter of rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op

# Tokens that a device kernel takes at once. 16 is the least that a matrix unit takes: best while most adapters have a
# row or two. From about 256 tokens on there are prompts among them, and a larger piece reads A and B fewer times.
SMALL_TILE, LARGE_TILE, LARGE_FROM = 16, 64, 256

ALIGN = 16  # elements: where an A or a B may start in the arena, so that a device reads 16 bytes at once


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """The adapter slot of each of T tokens, grouped. Slot 0 means no adapter."""

    slot: Tensor  # [T] int32
    order: Tensor  # [T] int32: tokens grouped by slot, those of slot 0 last
    pieces: Tensor  # [num_pieces, 3] int32: slot, start and end in `order`, at most `tile` tokens; the rest is zeros
    tile: int
    max_rank: int  # no adapter has a higher one; sizes a device kernel's scratch memory
    segments: tuple[tuple[int, int, int], ...]  # slot, start and end in `order`, one for each adapter; on the host

    @classmethod
    def build(
        cls, slots: Sequence[int], device: torch.device | str, max_segments: int, *, max_rank: int = 512
    ) -> DeltaRows:
        """Group `slots`, one for each token, with one copy to the device.

        At most `max_segments` adapters may be among them; shapes depend on that and on T alone, never on the slots.
        """
        slot = np.asarray(slots, dtype=np.int32)
        tile = SMALL_TILE if len(slot) < LARGE_FROM else LARGE_TILE
        order = np.argsort(np.where(slot == 0, np.iinfo(np.int32).max, slot), kind="stable").astype(np.int32)
        segments = _segments(slot[order])
        assert len(segments) <= max_segments, f"{len(segments)} adapters in one step, room for {max_segments}"
        pieces = np.zeros((len(slot) // tile + min(max_segments, len(slot)), 3), dtype=np.int32)
        cut = [(s, at, min(at + tile, end)) for s, start, end in segments for at in range(start, end, tile)]
        pieces[: len(cut)] = np.array(cut, dtype=np.int32).reshape(-1, 3)
        packed = torch.from_numpy(np.concatenate((slot, order, pieces.ravel()))).to(device)
        by_token, by_slot, by_piece = torch.split(packed, [len(slot), len(slot), pieces.size])
        return cls(by_token, by_slot, by_piece.view(-1, 3), tile, max_rank, segments)


def _segments(grouped: np.ndarray[tuple[int], np.dtype[np.int32]]) -> tuple[tuple[int, int, int], ...]:
    cuts = [0, *(np.flatnonzero(np.diff(grouped)) + 1).tolist(), len(grouped)]
    found = ((int(grouped[a]), a, b) for a, b in pairwise(cuts) if a < b)
    return tuple(segment for segment in found if segment[0] != 0)


@op
def add_delta_(
    y: Tensor, x: Tensor, arena: Tensor, table: Tensor, rows: DeltaRows, parts: tuple[tuple[int, int], ...]
) -> None:
    """Add to `y` [T, N] in place what each row's adapter makes of `x` [T, K], accumulated in float32.

    `parts` are the (start, size) of y's columns with an A and B of their own (q, k and v of a fused projection).
    `table` [num_slots, num_parts, 3] int64 holds (a_at, b_at, rank): A is [rank, K] at arena[a_at], B (transposed,
    the scale folded in) is [rank, size] at arena[b_at], both row-major and at multiples of ALIGN; rank 0 adds
    nothing. Rows of slot 0 keep their bits.
    """
    if not rows.segments:
        return
    adapted = rows.order[: rows.segments[-1][2]].long()
    wide_x, wide_y = x.index_select(0, adapted).float(), y.index_select(0, adapted).float()
    for slot, start, end in rows.segments:
        for (column, size), (a_at, b_at, rank) in zip(parts, table[slot].tolist(), strict=True):
            if rank == 0:
                continue
            a = arena[a_at : a_at + rank * x.shape[1]].view(rank, -1).float()
            b = arena[b_at : b_at + rank * size].view(rank, size).float()
            wide_y[start:end, column : column + size].addmm_(wide_x[start:end] @ a.t(), b)
    y.index_copy_(0, adapted, wide_y.to(y.dtype))


@op
def foresee_delta(
    arena: Tensor, table: Tensor, rows: DeltaRows, parts: tuple[tuple[int, int], ...], in_features: int
) -> None:
    """Say what the next `add_delta_` will read, so that memory brings it while the product before it is computed.

    `in_features` is K, the rest as there. It changes no number.
    """


@foresee_delta.cases(Tolerances())
def _foreseen(make: Inputs) -> Iterator[Case]:
    for case in _cases(make):
        _, x, *arguments = case.args
        yield Case(case.label, (*arguments, x.shape[1]), large=case.large)


@add_delta_.cases(Tolerances(float32=2e-5))
def _cases(make: Inputs) -> Iterator[Case]:
    # (label, slot of each token, rank of each slot and part, K, sizes of the parts, large)
    fused = [(0, 0, 0), (4, 4, 4), (3, 0, 20), (0, 0, 5)]
    wide = [(0, 0, 0), (8, 8, 8), (64, 0, 64), (16, 16, 16)]
    for label, slots, ranks, k, sizes, large in (
        ("mixed ranks, three parts", [0, 2, 1, 0, 2, 3, 1], fused, 40, (24, 8, 8), False),
        ("one plain Linear", [1, 1, 0], [(0,), (17,)], 33, (50,), False),
        ("an adapter with many tokens", [1] * 19 + [0, 2], [(0,), (2,), (1,)], 16, (16,), False),
        (
            "an adapter for each row",
            [3, 0, 1, 8, 5, 7, 2, 6, 4],
            [(rank, rank // 2) for rank in range(9)],
            40,
            (24, 41),
            False,
        ),
        ("nobody has an adapter", [0, 0], [(0,), (8,)], 16, (16,), False),
        ("Llama 8B decode", [0, 1, 2, 3] * 4, wide, 4096, (4096, 1024, 1024), True),
        ("Llama 8B prompts", [0] * 50 + [1] * 200 + [2] * 70 + [3], wide, 4096, (4096, 1024, 1024), True),
    ):
        arena, table = _arena(make, ranks, k, sizes)
        rows = DeltaRows.build(slots, make.device, max_segments=8, max_rank=64)
        parts = tuple((sum(sizes[:i]), size) for i, size in enumerate(sizes))
        y, x = make.normal(len(slots), sum(sizes)), make.normal(len(slots), k)
        base_rows = [i for i, slot in enumerate(slots) if slot == 0]
        yield Case(label, (y, x, arena, table, rows, parts), untouched=base_rows, large=large)


def _arena(make: Inputs, ranks: Sequence[tuple[int, ...]], k: int, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Adapters packed one after another, A before B, scaled so that the deltas are about as large as y."""
    held, entries, at = [], [], 0
    for slot_ranks in ranks:
        for rank, size in zip(slot_ranks, sizes, strict=True):
            entry = []
            for width, scale in ((k, k**-0.5), (size, max(rank, 1) ** -0.5)):
                entry.append(at)
                held.append(make.normal(-(-rank * width // ALIGN) * ALIGN, scale=scale))
                at += len(held[-1])
            entries.append((*entry, rank))
    return torch.cat(held), make.put(entries, torch.int64).view(len(ranks), len(sizes), 3)
