"""Steps in which every row decodes one token, recorded once for each size and then replayed: as a device graph, or on a
CPU as a tape of kernel calls.

A replay costs one launch instead of hundreds. A step is padded to the next size with spare rows, which write to cache
blocks that nobody owns. Whatever is no such step goes to the eager pass, and so do all where recording is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.errors import Unsupported
from ..core.log import event, get_logger
from ..core.platform import Platform
from .inputs import RowState
from .params import SamplingParams
from .passes import Eager, Passed, Rows
from .step import NewRow, Row

STRIDE = 8  # sizes are 1, 2, 4 and then every 8th: at most 7 rows are spare


log = get_logger(__name__)


class Recording(Protocol):
    """A run that can be done again, from the same memory into the same memory."""

    @property
    def result(self) -> Tensor: ...

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Who records runs on a kind of device."""

    def sizes(self, max_rows: int) -> list[int]:
        """The numbers of rows that are worth a recording each."""

    def record(self, run: Callable[[], Tensor]) -> Recording:
        """Do `run` and record it; raises Unsupported for what cannot be done again."""


def sizes_up_to(max_rows: int) -> list[int]:
    """The numbers of rows that get a graph."""
    return sorted({size for size in (1, 2, 4, *range(STRIDE, max_rows, STRIDE), max_rows) if size <= max_rows})


def num_spare_blocks(block_size: int) -> int:
    """Cache blocks that the spare rows write to."""
    return -(-STRIDE // block_size)


@dataclass(frozen=True, slots=True)
class _Recorded:
    recording: Recording
    rows: Any  # DeltaRows whose tensors the recording reads; None = no row has an adapter


class Graphed:
    """Owner of the recordings. They read the packer's buffer, which lies at the same place for the same size."""

    def __init__(
        self,
        eager: Eager,
        recorder: Recorder,
        *,
        max_rows: int,
        max_model_len: int,
        spare_blocks: range,
        block_size: int,
    ) -> None:
        self._eager = eager
        self._recorder = recorder
        self._sizes = recorder.sizes(max_rows)
        self._max_seq = max_model_len
        self._width = max(-(-max_model_len // block_size), len(spare_blocks))
        self._spare = spare_rows(spare_blocks)
        self._recorded: dict[tuple[int, int], _Recorded] = {}  # by size, and the rank that adapters' scratch is for

    def run(self, rows: Rows) -> Passed:
        if not self._sizes or len(rows) > self._sizes[-1] or not all(map(_decodes, rows)):
            return self._eager.run(rows)
        size = next(size for size in self._sizes if size >= len(rows))
        inputs = self._eager.packer.pack([*rows, *self._spare[: size - len(rows)]], width=self._width)
        inputs = replace(inputs, ragged=replace(inputs.ragged, max_seq=self._max_seq))
        delta = self._eager.adapters.rows(inputs.slots.tolist())
        key = size, 0 if delta is None else delta.max_rank
        if key not in self._recorded:
            try:
                self._recorded[key] = self._record(self._eager.batch(inputs, delta))
            except Unsupported as error:
                self._sizes = []
                log.warning(event("steps_not_recorded", reason=error.message, effect="slower steps"))
                return self._eager.run(rows)
        recorded = self._recorded[key]
        if delta is not None:
            _refill(recorded.rows, delta)
        recorded.recording.replay()
        return Passed(recorded.recording.result[: len(rows)], inputs.wanted[: len(rows)])

    def _record(self, batch: Any) -> _Recorded:
        forward = self._eager.network.forward
        return _Recorded(self._recorder.record(lambda: forward(batch)), batch.rows)


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    result: Tensor

    def replay(self) -> None:
        self.graph.replay()


class DeviceGraphs:
    """Recorder of CUDA and HIP graphs, which share one pool of memory."""

    def __init__(self) -> None:
        self._pool: Any = None

    def sizes(self, max_rows: int) -> list[int]:
        return sizes_up_to(max_rows)

    def record(self, run: Callable[[], Tensor]) -> Recording:
        run()  # compiles and tunes what is still missing, which no graph may record
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()
        self._pool = self._pool or graph.pool()
        return _Graph(graph, result)


class Tapes:
    """Recorder of the native kernels' calls on a CPU. Recording is cheap, so no step is padded."""

    def __init__(self) -> None:
        self._arena: Any = None

    def sizes(self, max_rows: int) -> list[int]:
        return list(range(1, max_rows + 1))

    def record(self, run: Callable[[], Tensor]) -> Recording:
        from ..kernels.native.tape import Arena, record  # raises Unsupported where there are no native kernels

        self._arena = self._arena or Arena()
        return record(run, self._arena)


def recorder_for(platform: Platform) -> Recorder:
    """The one that suits the device."""
    return Tapes() if platform.kind == "cpu" else DeviceGraphs()


def _decodes(pair: tuple[Row, RowState]) -> bool:
    row, state = pair
    return row.length == 1 and row.samples and not state.params.scores_prompt


def spare_rows(blocks: range) -> list[tuple[Row, RowState]]:
    """Rows that fill up a step. One token each, the first at position 0: every one writes to a place of its own."""
    state = RowState(NewRow("spare", [0] * STRIDE, STRIDE, SamplingParams(), 0, 0, tuple(blocks)))
    return [(Row(state.id, at, 1, samples=True), state) for at in range(STRIDE)]


def _refill(held: Any, new: Any) -> None:
    held.slot.copy_(new.slot)
    held.order.copy_(new.order)
    held.pieces.copy_(new.pieces)
