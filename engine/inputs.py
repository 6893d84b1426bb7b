"""What the network reads in a step, packed from what the scheduler said: one buffer, one copy to the device.

RowState mirrors what the scheduler knows of a request, so that a step need not carry it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..models.batch import Ragged
from .pooling import Pooled
from .sampler import Wanted
from .step import NewRow, Row

Array = NDArray[Any]
Scalar = TypeVar("Scalar", bound=np.generic)
ALIGNMENT = 16  # bytes; each field starts at a multiple
LAYOUTS = 256  # that are kept: decode steps have few shapes


class RowState:
    """One request as the runner knows it: its tokens, its cache blocks, its adapter's slot."""

    __slots__ = ("blocks", "id", "num_blocks", "num_prompt", "num_tokens", "params", "slot", "tokens")

    def __init__(self, new: NewRow) -> None:
        self.id = new.id
        self.params = new.params
        self.slot = new.slot
        self.num_prompt = new.num_prompt
        self.tokens: NDArray[np.int64] = _with_room(np.asarray(new.token_ids, np.int64))
        self.num_tokens = len(new.token_ids)
        self.blocks: NDArray[np.int32] = _with_room(np.asarray(new.blocks, np.int32))
        self.num_blocks = len(new.blocks)

    def took(self, tokens: Sequence[int]) -> None:
        """Tokens that were drawn."""
        end = self.num_tokens + len(tokens)
        if end > len(self.tokens):
            self.tokens = _with_room(self.tokens)
        self.tokens[self.num_tokens : end] = tokens
        self.num_tokens = end

    def grew(self, blocks: Sequence[int]) -> None:
        """Blocks that were added."""
        end = self.num_blocks + len(blocks)
        if end > len(self.blocks):
            self.blocks = _with_room(np.append(self.blocks[: self.num_blocks], np.asarray(blocks, np.int32)))
        self.blocks[self.num_blocks : end] = blocks
        self.num_blocks = end


def _with_room(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """`array` with as much room again, and some."""
    return np.concatenate([array, np.zeros(len(array) + 16, array.dtype)])


@dataclass(frozen=True, slots=True)
class Inputs:
    """One step on the device, and what is wanted of its last hidden states: to be drawn from, or to be pooled."""

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    sample_at: Tensor  # [S] int64
    ragged: Ragged
    slots: Array  # [T] int32: adapter slot of each token, on the host
    wanted: list[Wanted]
    pooled: list[Pooled]
    logits_at: list[int] | None  # of the hidden states at `sample_at`, those that logits are wanted of; None = all


class Packer:
    """Owner of the buffer. What it returns is overwritten by the next `pack`."""

    def __init__(
        self, *, max_tokens: int, max_rows: int, max_blocks: int, block_size: int, device: torch.device
    ) -> None:
        self._block_size = block_size
        self._max_blocks = max_blocks
        longs, ints = 4 * max_tokens, 2 * max_rows + 1 + max_rows * max_blocks
        self._buffer = _Buffer(8 * longs + 4 * ints + 8 * ALIGNMENT, device)

    def pack(self, rows: Sequence[tuple[Row, RowState]], *, width: int | None = None) -> Inputs:
        """`rows` in the order of the batch; `width`: columns of the block table, as many as are needed by default."""
        starts = np.asarray([row.start for row, _ in rows], np.int64)
        lengths = np.asarray([row.length for row, _ in rows], np.int64)
        ends = np.cumsum(lengths)
        wishes = _Wishes.of(rows, (ends - lengths).tolist())
        sample_at = wishes.sample_at
        num_tokens, num_rows = int(ends[-1]), len(rows)
        width = width or max(state.num_blocks for _, state in rows)
        layout = self._buffer.layout(
            (np.int64, (num_tokens,)),
            (np.int64, (num_tokens,)),
            (np.int64, (num_tokens,)),
            (np.int64, (len(sample_at),)),
            (np.int32, (num_rows + 1,)),
            (np.int32, (num_rows,)),
            (np.int32, (num_rows, width)),
        )
        tokens, positions, kv_slots, at, query_start, seq_lens, table = layout.arrays
        self._buffer.wait()
        query_start[0], query_start[1:], seq_lens[:], at[:] = 0, ends, starts + lengths, sample_at
        _copy_rows(rows, query_start.tolist(), tokens, table)
        positions[:] = np.arange(num_tokens) + np.repeat(starts - ends + lengths, lengths)
        block, offset = np.divmod(positions, self._block_size)
        kv_slots[:] = table[np.repeat(np.arange(num_rows), lengths), block] * self._block_size + offset
        sent = self._buffer.send(layout)
        ragged = Ragged(sent[4], sent[5], sent[6], sent[2], int(lengths.max()), int(seq_lens.max()))
        slots = np.repeat(np.asarray([state.slot for _, state in rows], np.int32), lengths)
        logits_at = wishes.logits_at if wishes.pooled else None
        return Inputs(sent[0], sent[1], sent[3], ragged, slots, wishes.wanted, wishes.pooled, logits_at)


def _copy_rows(rows: Sequence[tuple[Row, RowState]], starts: Sequence[int], tokens: Array, table: Array) -> None:
    table[:] = 0
    for at, (row, state) in enumerate(rows):
        tokens[starts[at] : starts[at + 1]] = state.tokens[row.start : row.start + row.length]
        table[at, : state.num_blocks] = state.blocks[: state.num_blocks]


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What the rows of a step want of its hidden states, and the tokens of the batch whose hidden states that takes."""

    sample_at: list[int] = field(default_factory=list)
    logits_at: list[int] = field(default_factory=list)  # in `sample_at`
    wanted: list[Wanted] = field(default_factory=list)
    pooled: list[Pooled] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Sequence[tuple[Row, RowState]], starts: Sequence[int]) -> _Wishes:
        """`starts`: the first token of each row in the batch."""
        wishes = cls()
        for (row, state), start in zip(rows, starts, strict=True):
            if state.params.pooling is None:
                wishes._draw(row, state, start)
            else:
                wishes._pool(row, state, start)
        return wishes

    def _draw(self, row: Row, state: RowState, start: int) -> None:
        end = row.start + row.length
        prompt_at, prompt_tokens = len(self.logits_at), None
        if state.params.scores_prompt and row.start < state.num_prompt:
            prompt_tokens = state.tokens[row.start + 1 : min(end + 1, state.num_prompt)].copy()
            self._want_logits(start, len(prompt_tokens))
        if row.samples:
            self._want_logits(start + row.length - 1, 1)
        if row.samples or prompt_tokens is not None:
            drawn_at = len(self.logits_at) - 1 if row.samples else None
            self.wanted.append(Wanted(state.id, drawn_at, prompt_at, prompt_tokens, row.start == 0))

    def _want_logits(self, first: int, count: int) -> None:
        self.logits_at.extend(range(len(self.sample_at), len(self.sample_at) + count))
        self.sample_at.extend(range(first, first + count))

    def _pool(self, row: Row, state: RowState, start: int) -> None:
        is_last, is_mean, begin = row.start + row.length == state.num_prompt, state.params.pooling == "mean", start
        if not is_mean:
            if not is_last:
                return
            begin = start + row.length - 1
        first = len(self.sample_at)
        self.sample_at.extend(range(begin, start + row.length))
        num_tokens = state.num_prompt if is_mean else 1
        self.pooled.append(Pooled(state.id, first, len(self.sample_at), num_tokens, is_last))


@dataclass(frozen=True, slots=True)
class _Layout:
    """The same bytes twice: as arrays to be filled, and as tensors on the device."""

    arrays: list[Array]
    tensors: list[Tensor]
    size: int


class _Buffer:
    """Bytes on the host (pinned for a device with memory of its own) and the same bytes on the device."""

    def __init__(self, size: int, device: torch.device) -> None:
        shared = device.type == "cpu"
        self._host = torch.empty(size, dtype=torch.uint8, pin_memory=not shared)
        self._device = self._host if shared else torch.empty(size, dtype=torch.uint8, device=device)
        self._sent = None if shared else torch.Event(device)  # the last copy; None = there is nothing to copy
        self._bytes = self._host.numpy()
        self.layout = functools.lru_cache(LAYOUTS)(self._layout)

    def wait(self) -> None:
        """Wait for the last copy: a step that draws nothing ends while its inputs are still on their way."""
        if self._sent is not None:
            self._sent.synchronize()

    def send(self, layout: _Layout) -> list[Tensor]:
        """What the arrays of `layout` hold, on the device, after one copy of all."""
        if self._sent is not None:
            self._device[: layout.size].copy_(self._host[: layout.size], non_blocking=True)
            self._sent.record()
        return layout.tensors

    def _layout(self, *wanted: tuple[type[np.generic], tuple[int, ...]]) -> _Layout:
        """Arrays in the buffer, one after another. The same shapes always lie at the same places."""
        arrays, tensors, at, end = [], [], 0, 0
        for dtype, shape in wanted:
            end = at + int(np.prod(shape)) * np.dtype(dtype).itemsize
            kind = torch.int64 if dtype is np.int64 else torch.int32
            arrays.append(self._bytes[at:end].view(dtype).reshape(shape))
            tensors.append(self._device[at:end].view(kind).view(shape))
            at = -(-end // ALIGNMENT) * ALIGNMENT
        return _Layout(arrays, tensors, end)
