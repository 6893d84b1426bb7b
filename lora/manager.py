"""From files to the rows of a step: the host cache, the slots, the arena and the hooks, in one hand.

The scheduler asks for slots; before each pass the runner does what the plan asks of memory. Both are the engine's
thread; only `prefetch`, `on_ready` and the counts may be used from others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..core import pages
from ..core.errors import ArilError
from ..core.log import event, get_logger
from ..core.metrics import ADAPTERS, adapter_counter, gauge
from ..kernels.ops.lora import ALIGN, DeltaRows
from .adapter import AdapterRef
from .cache import HostCache
from .delta import AdaptableLinear, Delta, Tables
from .fingerprint import Fingerprint
from .image import Image, Layout, load_image
from .slots import Move, SlotTable
from .validate import TargetSpec

LOADS = adapter_counter("adapter_loads", "Adapters copied to device memory")
DEVICE_BYTES = gauge("adapter_device_bytes", "Bytes of adapters in device memory")
SLOTS_USED = gauge("adapter_slots_used", "Adapters in device memory")
MOVE_PIECE = 1 << 22  # elements: what a move copies at once, so that compaction needs little memory of its own
LEAST_MAX_RANK = 64
UNNAMED = Fingerprint("the base")
log = get_logger(__name__)


class LoraManager:
    """All adapters of one network. Slot 0 is no adapter; `max_slots` others may be loaded at once."""

    def __init__(
        self,
        resolve: Callable[[AdapterRef], Path],
        linears: Mapping[str, AdaptableLinear],
        *,
        arena_bytes: int,
        max_slots: int,
        cache_bytes: int,
        dtype: torch.dtype,
        device: torch.device,
        base: Fingerprint = UNNAMED,
    ) -> None:
        self.targets = TargetSpec.of(base, linears, dtype)
        self._max_slots = max_slots
        self._arena = _memory(arena_bytes // dtype.itemsize // ALIGN * ALIGN, dtype, device)
        self._slots = SlotTable(self._arena.nbytes, max_slots)
        self._tables = Tables([len(linear.parts) for linear in linears.values()], max_slots + 1, device)
        self._layouts: dict[int, Layout] = {}  # by slot
        self._images: dict[int, Image] = {}  # by slot: placed, not loaded yet
        self._wishes: dict[str, AdapterRef] = {}  # pinned, not placed yet
        parts = [part.name for linear in linears.values() for part in linear.parts]
        self._cache = HostCache(lambda ref: load_image(resolve(ref), self.targets, parts), cache_bytes)
        _attach(linears.values(), self._arena, self._tables)

    def prefetch(self, ref: AdapterRef) -> None:
        """Begin to read `ref` into host memory, in the background. An earlier failure is tried again."""
        if self._slots.find(ref.digest) is None:
            self._cache.prefetch(ref)

    def is_ready(self, ref: AdapterRef) -> bool:
        """Whether `ref` is in memory, on the host or the device. Raises what `acquire` would."""
        if self._slots.find(ref.digest) is not None:
            return True
        image = self._cache.get(ref)
        if image is not None:
            self._slots.check_fits(ref, image.data.nbytes)
        return image is not None

    def acquire(self, ref: AdapterRef) -> int | None:
        """The slot of `ref`, held until `release`; None = not now: it is being read, or all room is in use.

        Raises what is wrong with this adapter: InvalidAdapter, NotFound, Unavailable or DoesNotFit.
        """
        slot = self._slots.acquire(ref.digest)
        if slot is None and self._place(ref):
            slot = self._slots.acquire(ref.digest)
        return None if slot is None else slot.number

    def release(self, ref: AdapterRef) -> None:
        """Give back what one `acquire` took; the adapter stays loaded while there is room."""
        self._slots.release(ref.digest)

    def take_loads(self) -> list[tuple[int, AdapterRef]]:
        """(slot, adapter) of what `apply` has to load before the next pass."""
        for ref in list(self._wishes.values()):
            if self._slots.find(ref.digest) is not None or self._place_pinned(ref):
                del self._wishes[ref.digest]
        return self._slots.take_loads()

    def apply(self, loads: Sequence[tuple[int, AdapterRef]]) -> None:
        """Bring arena and tables to the plan. Call it before every pass, with the loads of its step."""
        for move in self._slots.take_moves():
            self._move(move)
        for number, ref in loads:
            self._load(number, ref)
        DEVICE_BYTES.set(self.used_bytes)
        SLOTS_USED.set(self.num_slots_used)

    def rows(self, slots: Sequence[int]) -> DeltaRows | None:
        """The slots of a step's tokens as the kernels want them; None when no token has an adapter."""
        if not any(slots):
            return None
        max_rank = max(self._layouts[slot.number].max_rank for slot in self._slots)
        return DeltaRows.build(slots, self._arena.device, self._max_slots, max_rank=_rounded(max_rank))

    def pin(self, ref: AdapterRef) -> None:
        """Keep `ref` loaded from now on; load it as soon as there is room."""
        self._slots.pin(ref)
        self._wishes[ref.digest] = ref
        self.prefetch(ref)

    def unpin(self, ref: AdapterRef) -> None:
        """Let `ref` be evicted again when it is idle."""
        self._slots.unpin(ref)
        self._wishes.pop(ref.digest, None)

    def forget(self, ref: AdapterRef) -> None:
        """Free the slot, pins and host copy of these bytes; a slot in use goes with its last user."""
        self._wishes.pop(ref.digest, None)
        self._slots.forget(ref.digest)
        self._cache.forget(ref.digest)

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Call `callback`, from another thread, whenever a prefetch has ended, well or not."""
        self._cache.on_ready(callback)

    def close(self) -> None:
        """End the background threads."""
        self._cache.close()

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena that adapters hold."""
        return self._slots.used

    @property
    def total_bytes(self) -> int:
        """Bytes of the arena."""
        return self._slots.total

    @property
    def num_slots(self) -> int:
        """Most adapters that can hold a slot."""
        return self._max_slots

    @property
    def num_slots_used(self) -> int:
        """Adapters that hold a slot."""
        return len(self._slots)

    @property
    def num_slots_busy(self) -> int:
        """Adapters whose slot a request holds."""
        return sum(slot.users > 0 for slot in self._slots)

    def _place(self, ref: AdapterRef) -> bool:
        image = self._cache.get(ref)
        if image is None:
            self._cache.prefetch(ref)
            return False
        slot = self._slots.place(ref, image.data.nbytes)
        if slot is not None:
            self._images[slot.number], self._layouts[slot.number] = image, image.layout
        return slot is not None

    def _place_pinned(self, ref: AdapterRef) -> bool:
        try:
            return self._place(ref)
        except ArilError as error:  # nobody waits for this one: those who name it will be told
            log.warning(event("adapter_not_pinned", adapter=ref.name, digest=ref.digest, error=error))
            return True

    def _move(self, move: Move) -> None:
        width = self._arena.element_size()
        _move_down(self._arena, move.source // width, move.target // width, move.size // width)
        self._tables.load(move.slot, self._layouts[move.slot].entries_at(move.target // width))

    def _load(self, number: int, ref: AdapterRef) -> None:
        slot = self._slots.load(number, ref.digest)
        if slot is None:
            return
        image, at = self._images.pop(number), slot.at // self._arena.element_size()
        self._arena[at : at + image.data.numel()].copy_(image.data)
        self._tables.load(number, image.layout.entries_at(at))
        LOADS.labels(ADAPTERS.label(ref.name)).inc()


def _attach(linears: Iterable[AdaptableLinear], arena: Tensor, tables: Tables) -> None:
    for linear, table in zip(linears, tables.views(), strict=True):
        linear.delta = Delta(arena, table, tuple((part.start, part.size) for part in linear.parts))


def _move_down(arena: Tensor, source: int, target: int, size: int) -> None:
    for start in range(0, size, MOVE_PIECE):
        width = min(MOVE_PIECE, size - start)
        piece = arena[source + start : source + start + width].clone()  # the ranges may overlap
        arena[target + start : target + start + width] = piece


def _rounded(max_rank: int) -> int:
    """A power of two, so that kernels are compiled for few sizes."""
    return max(LEAST_MAX_RANK, 1 << (max_rank - 1).bit_length())


def _memory(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[size], whose numbers are anything."""
    return pages.zeros((size,), dtype) if device.type == "cpu" else torch.empty(size, dtype=dtype, device=device)
