"""MemoryAhead: the KV cache's memory is there before a step writes to it, a little ahead of the blocks in use.

Memory that nothing was written to yet costs a step a page fault for each of its pages, in all layers at once. Blocks
are first used in rising order, whoever uses them, so what comes next is known, and fetched while other work goes on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Event, Thread, get_native_id, main_thread

from torch import Tensor

from ...core import pages
from ...models.batch import LayerCache

# Measured with 135M weights on two cores of Zen 5, whose host hands out memory late. 16 rows that came to new memory
# paused for 460 ms with nothing fetched, for 300 with an eighth as the margin, for 150 with half, and as long without
# new memory. Beside a thread at the engine's own priority 2,047 tokens took 1.2 s, at the lowest 0.95 (0.83 alone).
MARGIN = 2  # the part of a large page that is still unused when the next is fetched
IDLE = (
    2  # large pages that are fetched while nobody waits (on Granite Rapids 120 MB took 0.4 s from rows of 16 streams)
)
LOWEST = 19  # niceness of the thread: it takes what the kernels leave of the cores


class MemoryAhead:
    """Owner of how many blocks, from the first on, have their memory. Without caches there is nothing to do.

    Beyond the blocks in use lie half to one and a half large pages of each layer's keys and of its values, after a rest
    two to three. All of the cache is never fetched: its size was chosen by what was free at the start, others may have
    taken that since, a container may allow less, and most of it may never be needed.
    """

    def __init__(self, caches: Sequence[LayerCache]) -> None:
        self._halves = [half for cache in caches for half in (cache.k, cache.v)]
        self._num_blocks = min((half.shape[0] for half in self._halves), default=0)
        self._stride = max(1, min((pages.PAGE // half[0].nbytes for half in self._halves), default=1))
        self._num_ready = 0
        self._closed = Event()
        self._thread: Thread | None = None

    def keep(self, num_used: int) -> None:
        """Let what follows the first `num_used` blocks have memory soon. Returns at once; call it before each step."""
        self._want(num_used + self._stride // MARGIN + 1)

    def rest(self, num_used: int) -> None:
        """As `keep`, but further, for now nobody waits for a step."""
        self._want(num_used + self._stride * IDLE)

    def _want(self, num_blocks: int) -> None:
        wanted = min(num_blocks, self._num_blocks)
        if wanted <= self._num_ready or self._closed.is_set():
            return
        if self._thread is not None and self._thread.is_alive():
            return  # a later call finds what is still to do
        first, self._num_ready = self._num_ready, -(-wanted // self._stride) * self._stride
        strides = range(first, self._num_ready, self._stride)
        self._thread = Thread(target=_fetch, args=(self._halves, strides, self._closed), name="kv-memory-ahead")
        self._thread.start()

    def close(self) -> None:
        """Fetch nothing any more."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()


def _fetch(halves: Sequence[Tensor], strides: range, closed: Event) -> None:
    """A thread's life. It holds the memory while it lasts, and ends soon, so that an engine nobody closed can go.

    Python waits for it at its end: a daemon would be stopped within torch, which ends the process with SIGABRT.
    """
    os.setpriority(os.PRIO_PROCESS, get_native_id(), LOWEST)
    for first in strides:
        for half in halves:
            ends = closed.is_set() or not main_thread().is_alive()
            if ends or not pages.fetch(half[first : first + strides.step]):
                return
