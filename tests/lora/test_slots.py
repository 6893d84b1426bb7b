"""The plan of slots and ranges: what is in use stays, what moves arrives whole, whatever is asked in whatever order."""

from __future__ import annotations

import pytest
from aril.core.errors import DoesNotFit
from aril.lora.adapter import AdapterRef
from aril.lora.slots import SlotTable
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

SIZES = {"a": 10, "b": 20, "c": 30, "d": 40, "e": 50, "f": 60}


def ref(digest: str, name: str = "") -> AdapterRef:
    return AdapterRef(name or digest, 1, digest)


def place(table: SlotTable, digest: str) -> int | None:
    slot = table.place(ref(digest), SIZES[digest])
    return None if slot is None else slot.number


def test_the_longest_unused_goes_first() -> None:
    table = SlotTable(total=60, max_slots=8)
    for digest in "abc":
        place(table, digest)
    table.acquire("a")
    table.release("a")
    place(table, "d")
    assert [slot.ref.digest for slot in table] == ["a", "d"]


def test_a_busy_slot_is_not_evicted() -> None:
    table = SlotTable(total=60, max_slots=8)
    place(table, "d")
    table.acquire("d")
    assert place(table, "c") is None
    table.release("d")
    assert place(table, "c") is not None


def test_a_pinned_slot_is_not_evicted() -> None:
    table = SlotTable(total=60, max_slots=1)
    table.pin(ref("a"))
    place(table, "a")
    with pytest.raises(DoesNotFit, match="--max-adapters"):
        place(table, "b")
    table.unpin(ref("a"))
    assert place(table, "b") == 1


def test_two_names_pin_the_same_bytes_until_both_let_go() -> None:
    table = SlotTable(total=60, max_slots=1)
    table.pin(ref("a", "one"))
    table.pin(ref("a", "two"))
    place(table, "a")
    table.unpin(ref("a", "one"))
    with pytest.raises(DoesNotFit):
        place(table, "b")


def test_an_adapter_that_can_never_fit_is_refused_with_the_flag() -> None:
    with pytest.raises(DoesNotFit, match=r"50 bytes.*--adapter-memory"):
        place(SlotTable(total=49, max_slots=8), "e")


def test_nobody_is_evicted_for_one_that_would_not_fit_anyway() -> None:
    table = SlotTable(total=60, max_slots=8)
    place(table, "a")
    place(table, "d")
    table.acquire("d")
    assert place(table, "c") is None
    assert table.find("a") is not None


def test_room_in_pieces_is_joined_by_moving_down() -> None:
    table = SlotTable(total=80, max_slots=8)
    for digest in "abc":
        place(table, digest)
        table.acquire(digest)
    for number, placed in table.take_loads():
        table.load(number, placed.digest)
    table.release("b")
    table.forget("b")
    place(table, "d")
    assert [(move.source, move.target, move.size) for move in table.take_moves()] == [(30, 10, 30)]


def test_a_forgotten_slot_in_use_goes_with_its_last_user() -> None:
    table = SlotTable(total=60, max_slots=8)
    place(table, "a")
    table.acquire("a")
    table.forget("a")
    assert table.find("a") is not None
    table.release("a")
    assert table.find("a") is None


class Plan(RuleBasedStateMachine):
    """Random calls beside a memory of single bytes that does what the plan says."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(total=100, max_slots=3)
        self.memory = [""] * 100
        self.busy: dict[str, list[int]] = {}

    @rule(digest=st.sampled_from(sorted(SIZES)))
    def acquire(self, digest: str) -> None:
        try:
            found = self.table.find(digest) or self.table.place(ref(digest), SIZES[digest])
        except DoesNotFit:
            return
        if found is not None:
            slot = self.table.acquire(digest)
            assert slot is not None
            self.busy.setdefault(digest, []).append(slot.number)

    @rule(digest=st.sampled_from(sorted(SIZES)))
    def release(self, digest: str) -> None:
        if self.busy.get(digest):
            self.busy[digest].pop()
            self.table.release(digest)

    @rule(digest=st.sampled_from(sorted(SIZES)))
    def forget(self, digest: str) -> None:
        self.table.forget(digest)

    @rule(digest=st.sampled_from("ab"), keep=st.booleans())
    def pin(self, digest: str, keep: bool) -> None:
        (self.table.pin if keep else self.table.unpin)(ref(digest))

    @rule()
    def apply(self) -> None:
        for move in self.table.take_moves():
            assert move.target < move.source
            self.memory[move.target : move.target + move.size] = self.memory[move.source : move.source + move.size]
        for number, loaded in self.table.take_loads():
            slot = self.table.load(number, loaded.digest)
            assert slot is not None
            self.memory[slot.at : slot.at + slot.size] = [loaded.digest] * slot.size
        for slot in self.table:
            assert self.memory[slot.at : slot.at + slot.size] == [slot.ref.digest] * slot.size

    @invariant()
    def ranges_and_numbers_are_its_own(self) -> None:
        slots = sorted(self.table, key=lambda slot: slot.at)
        ends = [0, *(slot.at + slot.size for slot in slots)]
        assert all(slot.at >= end for slot, end in zip(slots, ends, strict=False))
        assert ends[-1] <= 100
        assert len({slot.number for slot in slots}) == len(slots) <= 3

    @invariant()
    def users_keep_their_slot(self) -> None:
        for digest, numbers in self.busy.items():
            slot = self.table.find(digest)
            assert all(slot is not None and slot.number == number for number in numbers)
            assert slot is None or slot.users == len(numbers)


Plan.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestAnyOrderOfCalls = Plan.TestCase
