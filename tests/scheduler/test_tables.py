"""Block tables: nobody writes into a block of another's, and a copy is made before its source is lost."""

from __future__ import annotations

from aril.engine.kv.blocks import BlockPool
from aril.engine.kv.cache import UNCHANGED, Growth, KVTables
from aril.engine.params import SamplingParams
from aril.engine.request import Request

BLOCK_SIZE = 4


def forked(num_blocks: int) -> tuple[BlockPool, KVTables, Request, Request]:
    """A request with 6 computed tokens and one drawn, and the sibling that shares its two blocks."""
    pool = BlockPool(num_blocks)
    tables = KVTables(pool, None, BLOCK_SIZE)
    parent, child = Request("a", [1, 2, 3, 4, 5, 6], SamplingParams(n=2)).choices()
    tables.admit(parent, spare=0)
    parent.num_computed = 6
    tables.fork(parent, child)
    parent.output.append(7)
    return pool, tables, parent, child


def test_the_writer_of_a_shared_block_gets_a_copy_and_the_other_keeps_the_block() -> None:
    _, tables, parent, child = forked(num_blocks=4)
    old = tables.blocks(parent)[1]
    growth = tables.grow(parent)
    new = tables.blocks(parent)[1]
    assert growth == Growth((), moved=(1, new))
    assert tables.take_copies() == [(old, new)]
    assert tables.blocks(child)[1] == old


def test_a_block_that_is_copied_from_is_not_taken_until_the_copy_is_made() -> None:
    pool, tables, parent, child = forked(num_blocks=4)
    tables.grow(parent)
    tables.free(child)
    assert pool.num_free == 1
    tables.settle()
    assert pool.num_free == 2


def test_the_last_holder_of_a_block_writes_into_it() -> None:
    _, tables, parent, child = forked(num_blocks=4)
    tables.free(parent)
    assert tables.grow(child) is UNCHANGED


def test_a_request_that_finds_no_room_to_grow_keeps_what_it_has() -> None:
    _, tables, parent, _ = forked(num_blocks=2)
    before = tables.blocks(parent)
    assert tables.grow(parent) is None
    assert tables.blocks(parent) == before


def test_a_request_is_not_admitted_into_the_last_spare_blocks() -> None:
    pool = BlockPool(3)
    tables = KVTables(pool, None, BLOCK_SIZE)
    request = Request("a", [1] * 8, SamplingParams())
    assert tables.admit(request, spare=2) is None
    assert pool.num_free == 3
    assert tables.admit(request, spare=1) == 0
