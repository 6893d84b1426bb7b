"""What the adapters add to each Linear: the hook on it, and the tables that say where each slot's A and B lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ..kernels.ops.lora import DeltaRows, add_delta_, foresee_delta

ENTRY = 3  # where A starts, where B starts, rank


class AdaptablePart(Protocol):
    """One matrix of the checkpoint inside a Linear; `name` is its module path there and in PEFT files."""

    @property
    def name(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def size(self) -> int: ...


class AdaptableLinear(Protocol):
    """A Linear that adapters may add to."""

    @property
    def in_features(self) -> int: ...
    @property
    def parts(self) -> Sequence[AdaptablePart]: ...

    delta: Any  # the network's own protocol for the hook; a Delta satisfies it


class Delta:
    """The hook on one Linear. Slot 0 is no adapter: its rank is 0 everywhere."""

    def __init__(self, arena: Tensor, table: Tensor, parts: tuple[tuple[int, int], ...]) -> None:
        self.arena = arena  # [E]: every loaded adapter's numbers, shared by all Linears
        self.table = table  # [num_slots, num_parts, 3] int64
        self.parts = parts  # (first output, outputs) of each part

    def foresee(self, x: Tensor, rows: DeltaRows | None) -> None:
        """Before the product of x[T, in]: what add_ will read after it."""
        if rows is not None:
            foresee_delta(self.arena, self.table, rows, self.parts, x.shape[1])

    def add_(self, y: Tensor, x: Tensor, rows: DeltaRows | None) -> None:
        """y[T, out] += each row's own update of x[T, in], in place; None when no row has an adapter."""
        if rows is not None:
            add_delta_(y, x, self.arena, self.table, rows, self.parts)


class Tables:
    """The tables of all Linears in one tensor, so that a slot is written by one copy however many Linears there are."""

    def __init__(self, num_parts: Sequence[int], num_slots: int, device: torch.device) -> None:
        self._num_parts = num_parts
        self._num_slots = num_slots
        self._flat = torch.zeros(num_slots * ENTRY * sum(num_parts), dtype=torch.int64, device=device)
        widths = torch.tensor([parts * ENTRY for parts in num_parts])
        starts = torch.cumsum(widths * num_slots, 0) - widths * num_slots
        self._stride = widths.repeat_interleave(widths).to(device)  # [sum of widths]: from one slot to the next
        within = torch.cat([torch.arange(int(width)) for width in widths])
        self._first = (starts.repeat_interleave(widths) + within).to(device)  # [sum of widths]: where slot 0 is

    def views(self) -> Iterator[Tensor]:
        """Each Linear's own table, [num_slots, num_parts, 3]."""
        sizes = [self._num_slots * parts * ENTRY for parts in self._num_parts]
        for flat, parts in zip(torch.split(self._flat, sizes), self._num_parts, strict=True):
            yield flat.view(self._num_slots, parts, ENTRY)

    def load(self, slot: int, entries: Tensor) -> None:
        """Write the `entries` [all parts, 3] int64 of one slot, in the order of the Linears and their parts."""
        self._flat[self._first + slot * self._stride] = entries.reshape(-1).to(self._flat.device)

    def clear(self, slot: int) -> None:
        """From now on the slot adds nothing."""
        self._flat[self._first + slot * self._stride] = 0
