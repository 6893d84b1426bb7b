"""What this machine can do at most, measured in a second: bytes read, and products of each dtype."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

READ_BYTES = 256 << 20  # more than the last-level cache of most machines
PRODUCT = 1024  # rows, columns and depth of the product: 12 MB in float32, from the cache
SECONDS = 0.25  # for each measurement
READERS: tuple[Callable[[Tensor], object], ...] = (torch.sum, torch.amax)  # which is faster differs by machine


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Per second, with the threads that torch has: bytes read from memory, and floating-point operations."""

    num_bytes: float
    flops: Mapping[torch.dtype, float]

    def seconds(self, num_bytes: float, flops: float, dtype: torch.dtype) -> float:
        """The least that so much work can take; 0 operations of a dtype that was not measured."""
        peak = self.flops.get(dtype)
        return max(num_bytes / self.num_bytes, flops / peak if peak else 0.0)

    def __str__(self) -> str:
        products = ", ".join(f"{str(dtype)[6:]} {rate / 1e9:.0f} GFLOP/s" for dtype, rate in self.flops.items())
        return f"reads {self.num_bytes / 1e9:.1f} GB/s, products in {products}"


def measure(device: torch.device, synchronize: Callable[[], None] = lambda: None) -> Ceiling:
    """Ask the machine. Best of several rounds, as whatever else it does only slows it."""
    source = torch.ones(READ_BYTES // 4, device=device)  # float32
    read = min(_best(partial(reader, source), synchronize) for reader in READERS)
    flops = {}
    for dtype in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(PRODUCT, PRODUCT, device=device).to(dtype) for _ in "ab")
        flops[dtype] = 2 * float(PRODUCT) ** 3 / _best(partial(torch.mm, a, b), synchronize)
    return Ceiling(source.nbytes / read, flops)


def _best(call: Callable[[], object], synchronize: Callable[[], None]) -> float:
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end or best == float("inf"):
        synchronize()
        began = time.perf_counter()
        call()
        synchronize()
        best = min(best, time.perf_counter() - began)
    return best
