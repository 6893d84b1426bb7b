"""An adapter as it lies in memory: all its A and B in one range, each module paying for its own rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..kernels.ops.lora import ALIGN
from .validate import CheckedAdapter, TargetSpec, open_adapter, raise_problems


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the numbers of each part are within an adapter's range."""

    entries: Tensor  # [parts, 3] int64: start of A, start of B, rank; 0, 0, 0 = not adapted
    max_rank: int

    def entries_at(self, at: int) -> Tensor:
        """`entries` when the range begins at element `at`."""
        adapted = self.entries[:, 2:] > 0  # [parts, 1]
        return self.entries + adapted * torch.tensor([at, at, 0])


@dataclass(frozen=True, slots=True)
class Image:
    """The numbers of one adapter, ready to be copied anywhere into an arena in one piece."""

    data: Tensor  # [E], in the serving dtype, on the host
    layout: Layout


def load_image(folder: Path, targets: TargetSpec, parts: Sequence[str]) -> Image:
    """Read and check an adapter's files; `parts` gives the order of the entries. Raises InvalidAdapter."""
    with open_adapter(folder, targets) as adapter:
        raise_problems(adapter.problems)
        entries, size = _lay_out(adapter, parts)
        data = torch.zeros(size, dtype=targets.dtype)
        for part, (a_at, b_at, rank) in zip(parts, entries.tolist(), strict=True):
            if rank:
                pair = adapter.read(part)
                data[a_at : a_at + pair.a.numel()] = pair.a.flatten()
                data[b_at : b_at + pair.b.numel()] = pair.b.flatten()
        raise_problems(adapter.problems)
        return Image(data, Layout(entries, int(entries[:, 2].max())))


def image_bytes(modules: Iterable[tuple[int, int]], rank: int, dtype: torch.dtype) -> int:
    """Bytes of an adapter of `rank` on `modules` (inputs, outputs)."""
    at = 0
    for width, height in modules:
        _, at = _behind(at, rank, width, height)
    return at * dtype.itemsize


def size_of(adapter: CheckedAdapter) -> int:
    """Bytes that an opened adapter takes in memory."""
    at = 0
    for path in adapter.pairs:
        _, at = _behind(at, adapter.rank(path), *adapter.targets.modules[path])
    return at * adapter.targets.dtype.itemsize


def _lay_out(adapter: CheckedAdapter, parts: Sequence[str]) -> tuple[Tensor, int]:
    entries, at = torch.zeros(len(parts), 3, dtype=torch.int64), 0
    for row, part in enumerate(parts):
        if part in adapter.pairs:
            rank = adapter.rank(part)
            b_at, end = _behind(at, rank, *adapter.targets.modules[part])
            entries[row] = torch.tensor([at, b_at, rank])
            at = end
    return entries, at


def _behind(at: int, rank: int, width: int, height: int) -> tuple[int, int]:
    """Where B begins and ends when A begins at element `at`."""
    b_at = _aligned(at + rank * width)
    return b_at, _aligned(b_at + rank * height)


def _aligned(at: int) -> int:
    return -(-at // ALIGN) * ALIGN
