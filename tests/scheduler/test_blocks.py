"""Blocks: held by count, kept by content, taken back least recently used first."""

from __future__ import annotations

import pytest
from aril.engine.kv.blocks import BlockPool


def test_a_shared_block_is_free_when_its_last_holder_gives_it_back() -> None:
    pool = BlockPool(1)
    blocks = pool.take(1)
    pool.share(blocks)
    pool.give_back(blocks)
    assert pool.num_free == 0
    pool.give_back(blocks)
    assert pool.num_free == 1


def test_a_named_block_is_found_after_its_holder_has_gone() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.name(block, b"content")
    pool.give_back([block])
    assert pool.find(b"content") == block


def test_blank_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.name(block, b"content")
    pool.give_back([block])
    assert pool.take(1) != [block]


def test_the_blocks_that_were_ever_held_are_the_first_ones() -> None:
    pool = BlockPool(6)
    first, second = pool.take(2), pool.take(1)
    pool.name(first[0], b"content")
    pool.give_back([*first, *second])
    assert pool.num_used == 3
    assert sorted(pool.take(4)) == [1, 2, 3, 4]  # one more than were blank
    assert pool.num_used == 5


def test_the_least_recently_used_content_is_lost_first_and_no_longer_found() -> None:
    pool = BlockPool(2)
    old, new = pool.take(2)
    pool.name(old, b"old")
    pool.name(new, b"new")
    pool.give_back([old])
    pool.give_back([new])
    assert pool.take(1) == [old]
    assert (pool.find(b"old"), pool.find(b"new")) == (None, new)


def test_a_chain_is_lost_from_its_end() -> None:
    pool = BlockPool(3)
    chain = pool.take(3)
    for block in chain:
        pool.name(block, bytes([block]))
    pool.give_back(chain)
    assert [pool.take(1)[0] for _ in chain] == chain[::-1]


def test_a_named_block_is_not_writable_even_by_its_only_holder() -> None:
    pool = BlockPool(1)
    (block,) = pool.take(1)
    assert pool.writable(block)
    pool.name(block, b"content")
    assert not pool.writable(block)


def test_giving_back_what_nobody_holds_is_a_bug_that_shows() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="once too often"):
        pool.give_back([0])
