"""Work that nobody waits for: it takes what the others leave, and gives it back when they come."""

from __future__ import annotations

from aril.engine.background import CHUNK, EVERY
from aril.engine.request import BACKGROUND
from builders.world import World, adapter, ids

LONG = [1 + at % 30 for at in range(100)]


def test_alone_it_gets_all_there_is() -> None:
    world = World(max_num_batched_tokens=64)
    world.add("quiet", LONG, priority=BACKGROUND, max_tokens=1)
    assert [row.length for row in world.step().rows] == [64]


def test_several_of_it_alone_share_all_there_is() -> None:
    world = World(max_num_batched_tokens=256, max_model_len=512, num_blocks=256)
    world.add("writes", [1, 2], priority=BACKGROUND, max_tokens=50, ignore_eos=True)
    world.step()
    for at in range(2):
        world.add(f"quiet{at}", [*LONG, at], priority=BACKGROUND, max_tokens=1)
    assert [row.length for row in world.step().rows] == [1, 101, 101]


def test_beside_one_that_starts_it_has_a_small_row() -> None:
    world = World(max_num_batched_tokens=256, max_model_len=512, num_blocks=256)
    world.add("talks", [1, 2], max_tokens=5, ignore_eos=True)
    world.add("quiet", LONG, priority=BACKGROUND, max_tokens=1)
    assert [(row.id, row.length) for row in world.step().rows] == [("talks", 2), ("quiet", CHUNK)]


def test_beside_others_it_has_a_small_row_now_and_then() -> None:
    world = World(max_num_batched_tokens=64, max_model_len=512, num_blocks=256)
    world.add("talks", [1, 2], max_tokens=200, ignore_eos=True)
    world.add("quiet", LONG, priority=BACKGROUND, max_tokens=1)
    rows = [row for _ in range(4 * EVERY) for row in world.step().rows]
    lengths = [row.length for row in rows if row.id == "quiet"]
    assert len(lengths) in (4, 5)
    assert set(lengths) == {CHUNK}
    assert sum(row.id == "talks" for row in rows) == 4 * EVERY


def test_whoever_comes_takes_its_row_at_once() -> None:
    world = World(max_num_seqs=1)
    world.add("quiet", [1, 2], priority=BACKGROUND, max_tokens=50, ignore_eos=True)
    world.step()
    world.add("talks", [1, 2], max_tokens=2, ignore_eos=True)
    assert ids(world.step()) == ["talks"]


def test_whoever_comes_takes_its_blocks_at_once() -> None:
    world = World(num_blocks=8, max_model_len=32, max_num_batched_tokens=64)
    world.add("quiet", [1] * 25, priority=BACKGROUND, max_tokens=5, ignore_eos=True)
    world.step()
    world.add("talks", [2] * 25, max_tokens=1)
    assert ids(world.step()) == ["talks"]


def test_whoever_comes_takes_its_adapter_slot_at_once() -> None:
    world = World(slots=1)
    world.add("quiet", [1, 2], adapter("a"), priority=BACKGROUND, max_tokens=50, ignore_eos=True)
    world.step()
    world.add("talks", [1, 2], adapter("b"), max_tokens=2, ignore_eos=True)
    assert ids(world.step()) == ["talks"]


def test_it_goes_on_where_it_was_and_answers_the_same() -> None:
    alone, beside = World(), World()
    for world in (alone, beside):
        world.add("quiet", LONG, priority=BACKGROUND, max_tokens=10, ignore_eos=True)
    for at in range(5):
        beside.step()
        beside.add(f"talks{at}", [1, 2, at], max_tokens=2, ignore_eos=True)
    alone.run()
    beside.run()
    assert beside.output("quiet") == alone.output("quiet")


def test_it_does_not_start_while_somebody_waits() -> None:
    world = World()
    world.slots.late.add(adapter("a").digest)
    world.add("waits", [1, 2], adapter("a"), max_tokens=2)
    world.add("quiet", [1, 2], priority=BACKGROUND, max_tokens=2)
    assert ids(world.step()) == []
