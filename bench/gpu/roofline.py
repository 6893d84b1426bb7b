"""What the device can do at most, measured: bytes copied in a second, and bfloat16 products in a second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...core.platform import Platform
from ...kernels import dispatch
from .report import Report
from .scale import Scale

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Roof:
    """Per second: bytes that a copy reads and writes, and floating-point operations of a large bfloat16 product."""

    num_bytes: float
    flops: float


def run(report: Report, scale: Scale) -> None:
    """The machine, who computes what on it, and its roof."""
    roof = measure(scale)
    report.set("copy_gb_per_s", round(roof.num_bytes / 1e9, 1))
    report.set("bf16_tflops", round(roof.flops / 1e12, 2))
    report.set("memory_gib", round(scale.platform.memory / 1024**3, 1))
    report.set("kernels", {name: dispatch.explain(op) for name, op in dispatch.ops().items()})


def measure(scale: Scale) -> Roof:
    """A second of work at most."""
    return Roof(_copied(scale), _multiplied(scale))


def seconds_each(launch: Callable[[], object], *, times: int, platform: Platform) -> float:
    """Seconds of one of `times` launches in a row, the device idle before and after; median of several tries.

    One launch goes ahead untimed: it compiles and captures what is missing.
    """
    launch()
    tries = []
    for _ in range(REPEATS):
        platform.synchronize()
        started = time.perf_counter()
        for _ in range(times):
            launch()
        platform.synchronize()
        tries.append((time.perf_counter() - started) / times)
    return statistics.median(tries)


def _copied(scale: Scale) -> float:
    source = torch.ones(scale.copy_bytes // 4, dtype=torch.float32, device=scale.platform.device)
    target = torch.empty_like(source)
    seconds = seconds_each(lambda: target.copy_(source), times=5, platform=scale.platform)
    return 2 * source.nbytes / seconds


def _multiplied(scale: Scale) -> float:
    size = scale.matmul_size
    a, b = (torch.randn(size, size, device=scale.platform.device).bfloat16() for _ in "ab")
    seconds = seconds_each(lambda: torch.mm(a, b), times=5, platform=scale.platform)
    return 2 * float(size) ** 3 / seconds
