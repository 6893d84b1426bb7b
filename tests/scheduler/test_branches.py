"""Rows of beam searches: they share blocks until they part, wait for one another, and stand in nobody's way."""

from __future__ import annotations

import pytest
from builders.world import World, answer, ids

LONG = list(range(1, 33))  # 8 blocks
BEAMS = {"use_beam_search": True, "temperature": 0.0, "ignore_eos": True}


def check(world: World, *names: str, n: int) -> None:
    """Every choice is the one that a search alone would find."""
    world.run()
    for name in names:
        for index in range(n):
            [chunk] = world.heard[name, index]
            assert chunk.token_ids == world.answers[name][index]


def add(world: World, name: str, prompt: list[int], **fields: object) -> None:
    request = world.add(name, prompt, **{**BEAMS, **fields})
    choices = request.choices()[: request.params.n]
    world.answers[name] = [answer(choice, world.max_len) for choice in choices]


def test_beams_share_the_blocks_of_what_they_have_in_common() -> None:
    world = World(enable_prefix_caching=False, max_num_seqs=8, max_num_batched_tokens=32)
    add(world, "a", LONG, n=4, max_tokens=6)
    held = []
    while world.scheduler.has_work:
        world.step()
        held.append(world.scheduler.pool.num_blocks - world.scheduler.pool.num_free)
    assert max(held) <= 8 + 4 * 3  # the prompt once, and for each beam its tokens and one that is copied
    check(world, "a", n=4)


def test_all_beams_have_a_row_in_every_step() -> None:
    world = World(max_num_seqs=4, max_num_batched_tokens=32)
    add(world, "a", LONG, n=4, max_tokens=6)
    rows = [len(ids(world.step())) for _ in range(6)]
    assert rows == [1, 4, 4, 4, 4, 4]
    check(world, "a", n=4)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7])
def test_two_searches_that_do_not_fit_together_both_end(rows: int) -> None:
    world = World(max_num_seqs=rows, max_num_batched_tokens=16)
    for name in ("a", "b", "c"):
        add(world, name, LONG[: 5 + ord(name) % 7], n=2, best_of=4, max_tokens=9)
    world.add("other", [1, 2], max_tokens=9, ignore_eos=True)
    check(world, "a", "b", "c", n=2)
    assert len(world.output("other")) == 9


@pytest.mark.parametrize("num_blocks", [12, 14, 18, 24])
@pytest.mark.parametrize("caching", [True, False])
def test_beams_that_have_no_room_together_take_turns(num_blocks: int, caching: bool) -> None:
    world = World(num_blocks=num_blocks, max_model_len=48, max_num_seqs=8, enable_prefix_caching=caching)
    for name in ("a", "b"):
        add(world, name, LONG, n=4, max_tokens=15)
    check(world, "a", "b", n=4)
    assert world.scheduler.pool.num_free == num_blocks


def test_a_beam_that_fails_ends_all_of_its_search_alone() -> None:
    world = World(max_num_seqs=8)
    add(world, "a", LONG, n=3, max_tokens=9)
    world.add("b", [1, 2], max_tokens=4, ignore_eos=True)
    for _ in range(5):
        world.step()
    world.device.failing["a#2"] = ValueError("not finite")
    world.run()
    assert [type(world.last("a", index).error) for index in range(3)] == [ValueError] * 3
    assert len(world.output("b")) == 4
    assert world.scheduler.pool.num_free == world.scheduler.pool.num_blocks


def test_beams_that_are_not_asked_for_are_not_told_of() -> None:
    world = World(max_num_seqs=8)
    add(world, "a", LONG, n=1, best_of=4, max_tokens=5)
    check(world, "a", n=1)
    assert set(world.heard) == {("a", 0)}


def test_others_beside_a_search_lose_no_step() -> None:
    world = World(max_num_seqs=8, max_num_batched_tokens=32)
    world.add("other", [1, 2], max_tokens=12, ignore_eos=True)
    world.step()
    add(world, "a", LONG[:4], n=4, max_tokens=8)
    for _ in range(11):
        assert "other" in ids(world.step())
