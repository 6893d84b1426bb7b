"""Steps in which every row decodes one token, captured once for each size as a device graph and then replayed.

A replay costs one launch instead of hundreds. A step is padded to the next size with spare rows, which write to cache
blocks that nobody owns. Whatever is no such step goes to the eager pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .inputs import RowState
from .params import SamplingParams
from .passes import Eager, Rows
from .sampler import Wanted
from .step import NewRow, Row

STRIDE = 8  # sizes are 1, 2, 4 and then every 8th: at most 7 rows are spare


def sizes_up_to(max_rows: int) -> list[int]:
    """The numbers of rows that get a graph."""
    return sorted({size for size in (1, 2, 4, *range(STRIDE, max_rows, STRIDE), max_rows) if size <= max_rows})


def num_spare_blocks(block_size: int) -> int:
    """Cache blocks that the spare rows write to."""
    return -(-STRIDE // block_size)


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    rows: Any  # DeltaRows whose tensors the graph reads; None = no row has an adapter
    logits: Tensor  # [size, vocab], written by each replay


class Graphed:
    """Owner of the graphs. They read the packer's buffer, which lies at the same place for the same size."""

    def __init__(
        self, eager: Eager, *, max_rows: int, max_model_len: int, spare_blocks: range, block_size: int
    ) -> None:
        self._eager = eager
        self._sizes = sizes_up_to(max_rows)
        self._max_seq = max_model_len
        self._width = max(-(-max_model_len // block_size), len(spare_blocks))
        self._spare = spare_rows(spare_blocks)
        self._captured: dict[tuple[int, int], _Captured] = {}  # by size, and the rank that the adapters' scratch is for
        self._pool: Any = None

    def logits(self, rows: Rows) -> tuple[Tensor, list[Wanted]]:
        if len(rows) > self._sizes[-1] or not all(map(_decodes, rows)):
            return self._eager.logits(rows)
        size = next(size for size in self._sizes if size >= len(rows))
        inputs = self._eager.packer.pack([*rows, *self._spare[: size - len(rows)]], width=self._width)
        inputs = replace(inputs, ragged=replace(inputs.ragged, max_seq=self._max_seq))
        delta = self._eager.adapters.rows(inputs.slots.tolist())
        key = size, 0 if delta is None else delta.max_rank
        if key not in self._captured:
            self._captured[key] = self._capture(self._eager.batch(inputs, delta))
        captured = self._captured[key]
        if delta is not None:
            _refill(captured.rows, delta)
        captured.graph.replay()
        return captured.logits[: len(rows)], inputs.wanted[: len(rows)]

    def _capture(self, batch: Any) -> _Captured:
        forward = self._eager.network.forward
        forward(batch)  # compiles and tunes what is still missing, which no graph may record
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = forward(batch)
        self._pool = self._pool or graph.pool()
        return _Captured(graph, batch.rows, logits)


def _decodes(pair: tuple[Row, RowState]) -> bool:
    row, state = pair
    return row.length == 1 and row.samples and state.params.prompt_logprobs is None


def spare_rows(blocks: range) -> list[tuple[Row, RowState]]:
    """Rows that fill up a step. One token each, the first at position 0: every one writes to a place of its own."""
    state = RowState(NewRow("spare", [0] * STRIDE, STRIDE, SamplingParams(), 0, 0, tuple(blocks)))
    return [(Row(state.id, at, 1, samples=True), state) for at in range(STRIDE)]


def _refill(held: Any, new: Any) -> None:
    held.slot.copy_(new.slot)
    held.order.copy_(new.order)
    held.pieces.copy_(new.pieces)
