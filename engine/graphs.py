"""Steps that are recorded once and then replayed: as a device graph, or on a CPU as a tape of kernel calls.

A replay costs one launch instead of hundreds. A recording fits the steps of its frame. A step that decodes may be
padded to a larger one with spare rows, which write to cache blocks that nobody owns. What fits none goes to the eager
pass, and so does what cannot be recorded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.errors import Unsupported
from ..core.log import event, get_logger
from ..core.platform import Platform
from ..models.batch import ForwardBatch
from .inputs import Inputs, RowState
from .params import SamplingParams
from .passes import Eager, Passed, Rows
from .step import NewRow, Row

STRIDE = 8  # sizes are 1, 2, 4 and then every 8th: at most 7 rows are spare
KEPT = 512  # recordings, and frames that are remembered

log = get_logger(__name__)


class Recording(Protocol):
    """A run that can be done again, from the same memory into the same memory."""

    @property
    def result(self) -> Tensor: ...

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Frame:
    """What steps have in common that one recording does for."""

    tokens: int
    rows: int
    results: int  # rows that a token is drawn for


class Recorder(Protocol):
    """Who records runs on a kind of device."""

    def frame(self, rows: Rows) -> Frame | None:
        """What such a step is recorded as: spare rows fill it up. None = that is not worth it, or not yet."""

    def record(self, run: Callable[[], Tensor]) -> Recording:
        """Do `run` and record it: the result is there. Raises Unsupported for what cannot be done again."""


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
    """Owner of the recordings. They read the packer's buffer, which lies at the same place for the same frame."""

    def __init__(
        self, eager: Eager, recorder: Recorder, *, max_model_len: int, spare_blocks: range, block_size: int
    ) -> None:
        self._eager = eager
        self._recorder = recorder
        self._max_seq = max_model_len
        self._width = max(-(-max_model_len // block_size), len(spare_blocks))
        self._spare = spare_rows(spare_blocks)
        # by frame, and the rank that adapters' scratch is for; the last used stands last; None = it was refused
        self._recorded: OrderedDict[tuple[Frame, int], _Recorded | None] = OrderedDict()
        self._refusals: set[str] = set()  # each is told once

    def run(self, rows: Rows) -> Passed:
        frame = self._recorder.frame(rows)
        if frame is None:
            return self._eager.run(rows)
        inputs = self._eager.packer.pack([*rows, *self._spare[: frame.rows - len(rows)]], width=self._width)
        inputs = replace(inputs, ragged=replace(inputs.ragged, max_seq=self._max_seq))
        delta = self._eager.adapters.rows(inputs.slots.tolist())
        recorded = self._done(frame, inputs, delta)
        if recorded is None:
            return self._eager.run(rows)
        num_results = sum(row.samples for row, _ in rows)
        return Passed(recorded.recording.result[:num_results], inputs.wanted[:num_results])

    def _done(self, frame: Frame, inputs: Inputs, delta: Any) -> _Recorded | None:
        """The frame's recording after it did `inputs`; None = there can be none."""
        key = frame, 0 if delta is None else delta.max_rank
        if key not in self._recorded:
            self._recorded[key] = self._record(self._eager.batch(inputs, delta))
        elif (recorded := self._recorded[key]) is not None:
            if delta is not None:
                _refill(recorded.rows, delta)
            recorded.recording.replay()
        _use(self._recorded, key)
        return self._recorded[key]

    def _record(self, batch: ForwardBatch) -> _Recorded | None:
        forward = self._eager.network.forward
        try:
            return _Recorded(self._recorder.record(lambda: forward(batch)), batch.rows)
        except Unsupported as error:
            if error.message not in self._refusals:
                tokens = len(batch.tokens)
                log.warning(event("step_not_recorded", tokens=tokens, reason=error.message, effect="slower steps"))
            self._refusals.add(error.message)
            return None


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    result: Tensor

    def replay(self) -> None:
        self.graph.replay()


class DeviceGraphs:
    """Recorder of CUDA and HIP graphs, which share one pool of memory: steps in which every row decodes one token."""

    def __init__(self, max_rows: int) -> None:
        self._sizes = sizes_up_to(max_rows)
        self._pool: Any = None

    def frame(self, rows: Rows) -> Frame | None:
        size = next((size for size in self._sizes if size >= len(rows)), None)
        return Frame(size, size, size) if size is not None and all(map(_decodes, rows)) else None

    def record(self, run: Callable[[], Tensor]) -> Recording:
        run()  # compiles and tunes what is still missing, which no graph may record
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()
        self._pool = self._pool or graph.pool()
        graph.replay()  # which recording it was not
        return _Graph(graph, result)


class Tapes:
    """Recorder of the native kernels' calls on a CPU. Recording is cheap, so no step is padded, and whatever comes a
    second time is recorded: prompts are cut into chunks as long as a step may be.
    """

    def __init__(self) -> None:
        self._arena: Any = None
        self._met: OrderedDict[Frame, None] = OrderedDict()

    def frame(self, rows: Rows) -> Frame | None:
        if any(state.params.scores_prompt or state.params.pooling for _, state in rows):
            return None
        frame = Frame(sum(row.length for row, _ in rows), len(rows), sum(row.samples for row, _ in rows))
        known = frame in self._met or frame.tokens == frame.results
        self._met[frame] = None
        _use(self._met, frame)
        return frame if known else None

    def record(self, run: Callable[[], Tensor]) -> Recording:
        from ..kernels.native.tape import Arena, record  # raises Unsupported where there are no native kernels

        self._arena = self._arena or Arena()
        return record(run, self._arena)


def recorder_for(platform: Platform, max_rows: int) -> Recorder:
    """The one that suits the device; `max_rows` of a step."""
    return Tapes() if platform.kind == "cpu" else DeviceGraphs(max_rows)


def _decodes(pair: tuple[Row, RowState]) -> bool:
    row, state = pair
    return row.length == 1 and row.samples and not state.params.scores_prompt


def _use(held: OrderedDict[Any, Any], key: Any) -> None:
    """`key` was used last; what has not been used for longest goes, where there is too much."""
    held.move_to_end(key)
    if len(held) > KEPT:
        held.popitem(last=False)


def spare_rows(blocks: range) -> list[tuple[Row, RowState]]:
    """Rows that fill up a step. One token each, the first at position 0: every one writes to a place of its own."""
    state = RowState(NewRow("spare", [0] * STRIDE, STRIDE, SamplingParams(), 0, 0, tuple(blocks)))
    return [(Row(state.id, at, 1, samples=True), state) for at in range(STRIDE)]


def _refill(held: Any, new: Any) -> None:
    held.slot.copy_(new.slot)
    held.order.copy_(new.order)
    held.pieces.copy_(new.pieces)
