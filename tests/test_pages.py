"""Memory in large pages: zeros of one's own, given back with the last tensor."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import pytest
import torch
from aril.core import pages


def resident() -> int:
    """Kilobytes of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def test_tensors_are_zeros_that_share_nothing() -> None:
    made = [pages.zeros((3, size), torch.bfloat16) for size in (1, 500, 70_000, 9_000_000)]
    for number, tensor in enumerate(made):
        assert not tensor.any()
        assert tensor.data_ptr() % pages.LINE == 0
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        tensor.fill_(number + 1)
    assert all(bool((tensor == number + 1).all()) for number, tensor in enumerate(made))


def test_a_copy_lies_in_one_piece() -> None:
    view = torch.arange(12).view(3, 4).t()
    copy = pages.moved(view)
    assert copy.is_contiguous()
    assert torch.equal(copy, view)


def test_nothing_takes_no_memory() -> None:
    assert pages.zeros((0, 5), torch.float32).shape == (0, 5)


def test_memory_goes_back_with_the_last_tensor() -> None:
    before = resident()
    held = [pages.zeros((1 << 20,), torch.float32).fill_(1.0) for _ in range(40)]
    assert resident() - before > 120_000
    held.clear()
    gc.collect()
    assert resident() - before < 40_000


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc's malloc alone keeps and gives back")
def test_what_malloc_keeps_of_freed_memory_goes_back_when_asked() -> None:
    pages.give_back()
    held = [torch.ones(60_000, dtype=torch.uint8) for _ in range(1000)]  # too small for memory of their own
    before = resident()
    del held[:-1]  # the last lies on top of the others
    pages.give_back()
    assert before - resident() > 50_000
