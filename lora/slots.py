"""Which adapter is in which slot and where in the arena: a plan in whole numbers. It has never seen a tensor.

Every adapter holds one contiguous range. Idle ones stay until the room is needed, the longest unused going first. When
the free room suffices but lies in pieces, everything moves down. Plans change at any time between two passes; what they
ask of memory is fetched with `take_moves` and `take_loads`, and the old places stay valid until then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.errors import DoesNotFit
from ..core.metrics import ADAPTERS, adapter_counter
from .adapter import AdapterRef

EVICTIONS = adapter_counter("adapter_evictions", "Idle adapters that left device memory to make room")


@dataclass(slots=True)
class Slot:
    """One adapter's place. The slot table alone writes it."""

    number: int  # 1 or more
    ref: AdapterRef
    size: int
    at: int  # the plan: first byte of its range
    lies_at: int | None = None  # where the bytes are now; None = not loaded yet
    announced: bool = False  # whether take_loads has spoken of it
    users: int = 0
    doomed: bool = False  # leaves with its last user


@dataclass(frozen=True, slots=True)
class Move:
    """`size` bytes of one slot go down from `source` to `target`; the ranges may overlap."""

    slot: int
    source: int
    target: int
    size: int


class SlotTable:
    """At most `max_slots` adapters in `total` bytes. A slot with users or a pin is never evicted."""

    def __init__(self, total: int, max_slots: int) -> None:
        self.total = total
        self.max_slots = max_slots
        self._slots: dict[str, Slot] = {}  # by digest, the longest unused first
        self._pins: dict[str, set[str]] = {}  # digest -> names that want it to stay

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self._slots.values()))

    @property
    def used(self) -> int:
        """Bytes that slots hold."""
        return sum(slot.size for slot in self)

    def find(self, digest: str) -> Slot | None:
        """The slot of these bytes."""
        return self._slots.get(digest)

    def acquire(self, digest: str) -> Slot | None:
        """One more user of a slot that exists."""
        slot = self._slots.pop(digest, None)
        if slot is not None:
            self._slots[digest] = slot
            slot.users += 1
            slot.doomed = False
        return slot

    def release(self, digest: str) -> None:
        """One user less."""
        slot = self._slots.pop(digest)
        assert slot.users > 0, f"slot {slot.number} is released more often than it was acquired"
        slot.users -= 1
        if slot.users or not slot.doomed:
            self._slots[digest] = slot

    def place(self, ref: AdapterRef, size: int) -> Slot | None:
        """A slot for bytes that have none, evicting and compacting as needed; None = not before someone releases.

        Raises DoesNotFit when there would not be room even if all but the pinned slots were gone.
        """
        self.check_fits(ref, size)
        leaving = self._longest_unused(size)
        if leaving is None:
            return None
        for slot in leaving:
            del self._slots[slot.ref.digest]
            EVICTIONS.labels(ADAPTERS.label(slot.ref.name)).inc()
        at = self._gap(size)
        if at is None:
            at = self._compact()
        taken = {slot.number for slot in self}
        number = next(n for n in range(1, self.max_slots + 1) if n not in taken)
        slot = self._slots[ref.digest] = Slot(number, ref, size, at)
        return slot

    def check_fits(self, ref: AdapterRef, size: int) -> None:
        """Raise DoesNotFit when `size` bytes have no room beside those that are pinned."""
        pinned = [slot for slot in self if slot.ref.digest in self._pins and slot.ref.digest != ref.digest]
        room = self.total - sum(slot.size for slot in pinned)
        if size > room:
            raise DoesNotFit(
                f"adapter {ref.name!r} needs {size} bytes; of the {self.total} bytes of adapter memory pinned adapters "
                f"leave {room}; raise --adapter-memory"
            )
        if len(pinned) >= self.max_slots:
            raise DoesNotFit(f"all {self.max_slots} adapter slots are pinned; raise --max-adapters")

    def forget(self, digest: str) -> None:
        """Free the slot, once its last user has left."""
        self._pins.pop(digest, None)
        slot = self._slots.get(digest)
        if slot is not None and slot.users:
            slot.doomed = True
        elif slot is not None:
            del self._slots[digest]

    def pin(self, ref: AdapterRef) -> None:
        """Keep these bytes, once they are placed, until the same name is unpinned."""
        self._pins.setdefault(ref.digest, set()).add(ref.name)

    def unpin(self, ref: AdapterRef) -> None:
        """`ref.name` no longer minds an eviction."""
        names = self._pins.get(ref.digest, set())
        names.discard(ref.name)
        if not names:
            self._pins.pop(ref.digest, None)

    def take_moves(self) -> list[Move]:
        """What has to move, in this order and before anything is loaded."""
        moves = []
        for slot in sorted(self, key=lambda s: s.at):
            if slot.lies_at is not None and slot.lies_at != slot.at:
                moves.append(Move(slot.number, slot.lies_at, slot.at, slot.size))
                slot.lies_at = slot.at
        return moves

    def take_loads(self) -> list[tuple[int, AdapterRef]]:
        """The slots placed since the last call."""
        new = [slot for slot in self if not slot.announced]
        for slot in new:
            slot.announced = True
        return [(slot.number, slot.ref) for slot in new]

    def load(self, number: int, digest: str) -> Slot | None:
        """The slot whose bytes are to be written now; None when it no longer is what was announced."""
        slot = self._slots.get(digest)
        if slot is None or slot.number != number or slot.lies_at is not None:
            return None
        slot.lies_at = slot.at
        return slot

    def _longest_unused(self, size: int) -> list[Slot] | None:
        """Whom to evict so that `size` bytes and a number are free; None when those that may go do not suffice."""
        leaving: list[Slot] = []
        idle = (slot for slot in self if not slot.users and slot.ref.digest not in self._pins)
        free = self.total - self.used
        while free < size or len(self) - len(leaving) >= self.max_slots:
            slot = next(idle, None)
            if slot is None:
                return None
            leaving.append(slot)
            free += slot.size
        return leaving

    def _gap(self, size: int) -> int | None:
        at = 0
        for slot in sorted(self, key=lambda s: s.at):
            if slot.at - at >= size:
                return at
            at = slot.at + slot.size
        return at if self.total - at >= size else None

    def _compact(self) -> int:
        """Plan every slot as low as it goes, order kept; returns the first free byte."""
        at = 0
        for slot in sorted(self, key=lambda s: s.at):
            slot.at = at
            at += slot.size
        return at
