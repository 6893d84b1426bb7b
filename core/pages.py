"""Memory for what is read in every step (weights, adapters, keys and values) in large pages, if the system has them.

A step that reads 270 MB goes through 66,000 pages of 4 KiB, and on a virtual machine each that the TLB has forgotten is
a walk through two sets of tables. (Zen 4, both cores, one row times 4096 x 4096 in bfloat16: 31 GB/s in small pages, 76
in large ones.) Large pages are asked for, not reserved: without them all is as with torch's own memory.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

PAGE = 2 << 20
SLAB = 32 << 20  # that small tensors share
LINE = 64  # bytes: where a tensor may start
POPULATE_WRITE = 23  # of Linux 5.14's madvise; Python's own lets no other thread run meanwhile
CAN_FETCH = sys.platform == "linux"


class _Slabs:
    """Owner of the slab that is being filled; it lives as long as the tensors in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slab: weakref.ref[mmap.mmap] | None = None
        self._at = 0

    def take(self, size: int) -> Tensor:
        """[size] bytes, zeros that nobody else has."""
        if size > SLAB // 4:
            return _bytes_of(_mapped(size), 0, size)
        with self._lock:
            slab = self._slab() if self._slab is not None else None
            if slab is None or self._at + size > SLAB:
                slab, self._at = _mapped(SLAB), 0
                self._slab = weakref.ref(slab)
            found = _bytes_of(slab, self._at, size)
            self._at += -(-size // LINE) * LINE
        return found


_slabs = _Slabs()


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros [shape] on the CPU, which take no memory before they are written to."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.zeros(*shape, dtype=dtype)
    return _slabs.take(size).view(dtype).view(*shape)


def moved(tensor: Tensor) -> Tensor:
    """A copy of a tensor on the CPU, in one piece."""
    return zeros(tensor.shape, tensor.dtype).copy_(tensor)


def fetch(tensor: Tensor) -> bool:
    """Have the system hand out the memory that a tensor lies in, now instead of when it is first written to.

    What it holds stays, even if another thread writes meanwhile. False where the system cannot, or has none left.
    """
    first, end = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE, tensor.data_ptr() + tensor.nbytes
    done: int = _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), POPULATE_WRITE)
    return done == 0


def give_back() -> None:
    """Give the system what malloc has kept of freed memory: after a load up to 90 MB, by the luck of two threads."""
    with suppress(AttributeError):  # not glibc
        _libc().malloc_trim(0)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _mapped(size: int) -> mmap.mmap:
    """New memory with room for `size` bytes from a large page's start on."""
    mapped = mmap.mmap(-1, -(-size // PAGE) * PAGE + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # a system without them
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _bytes_of(mapped: mmap.mmap, at: int, size: int) -> Tensor:
    first = -torch.frombuffer(mapped, dtype=torch.uint8).data_ptr() % PAGE
    return torch.frombuffer(mapped, dtype=torch.uint8, offset=first + at, count=size)
