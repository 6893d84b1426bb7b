"""The KV cache's memory is there before it is written to, and not all of it."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from aril.core import pages
from aril.engine.kv.ahead import MemoryAhead
from aril.models.batch import LayerCache
from builders.engines import make_engine
from builders.models import make_model
from torch import Tensor

STRIDE = 4  # blocks in a large page
LIBC = ctypes.CDLL(None)


def can_fetch() -> bool:
    """Whether this system knows how; Linux does from 5.14 on."""
    return pages.CAN_FETCH and pages.fetch(pages.zeros((1,), torch.uint8))


pytestmark = pytest.mark.skipif(not can_fetch(), reason="this system cannot fetch memory ahead")


def make_caches(num_blocks: int) -> list[LayerCache]:
    shape = num_blocks, 1, 1, pages.PAGE // STRIDE
    return [LayerCache(*(pages.zeros(shape, torch.uint8) for _ in range(2))) for _ in range(3)]


def settle() -> None:
    """Until nothing is being fetched any more."""
    for thread in threading.enumerate():
        if thread.name == "kv-memory-ahead":
            thread.join()


def share_there(piece: Tensor) -> float:
    """Of its pages, those that are in memory."""
    first = piece.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    size = piece.data_ptr() + piece.nbytes - first
    there = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    assert LIBC.mincore(ctypes.c_void_p(first), ctypes.c_size_t(size), there) == 0
    return sum(page & 1 for page in there) / len(there)


def shares(caches: list[LayerCache], first: int, end: int) -> set[float]:
    return {share_there(half[first:end]) for cache in caches for half in (cache.k, cache.v)}


def test_the_first_blocks_of_all_layers_have_memory_before_the_first_request_and_the_others_none() -> None:
    caches = make_caches(8 * STRIDE)
    MemoryAhead(caches).keep(0)
    settle()
    assert shares(caches, 0, STRIDE) == {1.0}
    assert shares(caches, STRIDE, 8 * STRIDE) == {0.0}


def test_memory_is_fetched_when_what_is_ready_is_half_used() -> None:
    caches = make_caches(8 * STRIDE)
    ahead = MemoryAhead(caches)
    found = []
    for used in range(2 * STRIDE):
        ahead.keep(used)
        settle()
        found.append(int(sum(share_there(caches[0].k[at : at + 1]) for at in range(8 * STRIDE))))
    assert found == [4, 4, 8, 8, 8, 8, 12, 12]


def test_after_a_rest_two_large_pages_more_are_there() -> None:
    caches = make_caches(8 * STRIDE)
    ahead = MemoryAhead(caches)
    ahead.rest(1)
    settle()
    assert shares(caches, 0, 3 * STRIDE) == {1.0}
    assert shares(caches, 3 * STRIDE, 8 * STRIDE) == {0.0}


def test_a_process_that_ends_meanwhile_ends_well() -> None:
    script = f"""
from aril.core import pages
from aril.engine.kv.ahead import MemoryAhead
from aril.models.batch import LayerCache
import torch
half = lambda: pages.zeros((256, 1, 1, pages.PAGE // {STRIDE}), torch.uint8)
MemoryAhead([LayerCache(half(), half()) for _ in range(8)]).keep(256)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_last_blocks_are_fetched_too_and_nothing_behind_them() -> None:
    caches = make_caches(STRIDE + 1)
    ahead = MemoryAhead(caches)
    for used in (0, STRIDE - 1, STRIDE + 1):
        ahead.keep(used)
        settle()
    assert shares(caches, 0, STRIDE + 1) == {1.0}


def test_fetching_changes_nothing_of_what_is_written_meanwhile() -> None:
    memory = pages.zeros((16 * pages.PAGE,), torch.uint8)
    fetching = threading.Thread(target=lambda: [pages.fetch(memory) for _ in range(20)])
    fetching.start()
    for piece in memory.split(mmap.PAGESIZE):
        piece.fill_(7)
    fetching.join()
    assert bool((memory == 7).all())


def test_nothing_is_fetched_once_it_is_closed() -> None:
    caches = make_caches(8 * STRIDE)
    ahead = MemoryAhead(caches)
    ahead.close()
    ahead.keep(2 * STRIDE)
    settle()
    assert shares(caches, 0, 8 * STRIDE) == {0.0}


def test_an_engine_has_the_memory_of_its_first_step(tmp_path: Path) -> None:
    engine = make_engine(make_model(tmp_path))
    settle()
    assert shares(engine._runner._caches, 0, 16) == {1.0}


def test_a_device_that_hands_out_all_at_once_is_left_alone() -> None:
    before = threading.active_count()
    MemoryAhead(()).keep(100)
    assert threading.active_count() == before
