"""Products with weights in codes, each beside the least time in which its bytes can be read.

The shapes are those of the 8B model's widest and squarest Linear. Copies of a weight take turns, more than a cache
holds, because weights come from memory when a model runs; where there are device graphs a round is one replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ...core.platform import Platform
from ...kernels.ops import matmul
from ...kernels.ops.grouped import GroupedWeight, Groups, matmul_grouped, pack
from .report import Report
from .roofline import measure, seconds_each
from .scale import Scale, Shape

DTYPE = torch.bfloat16
ROWS = (1, 16)
MOST_COPIES = 32
Product = Callable[[Tensor], Tensor]
Maker = Callable[[int, int, torch.device], tuple[Product, int]]  # outputs and inputs to a product and its bytes


def run(report: Report, scale: Scale) -> None:
    """Every format, shape and number of rows."""
    num_bytes = measure(scale).num_bytes
    for n, k in shapes(scale.shapes["8B"]):
        for name, make in FORMATS.items():
            copies = list(_copies(make, n, k, scale))
            for rows in ROWS:
                x = torch.randn(rows, k, dtype=DTYPE, device=scale.platform.device)
                seconds = _seconds(x, [product for product, _ in copies], scale)
                least = (copies[0][1] + x.nbytes + rows * n * DTYPE.itemsize) / num_bytes
                report.add("products", _told(name, n, k, rows, seconds, least))


def shapes(shape: Shape) -> tuple[tuple[int, int], ...]:
    """Outputs and inputs: gate and up together, and the one behind attention."""
    return (2 * shape.inner, shape.hidden), (shape.hidden, shape.heads * shape.head_dim)


def _plain(n: int, k: int, device: torch.device) -> tuple[Product, int]:
    weight = matmul.pack(torch.randn(n, k, dtype=DTYPE, device=device))
    return lambda x: matmul.linear(x, weight), weight.data.nbytes


def _coded(n: int, k: int, bits: int, device: torch.device, **more: Any) -> tuple[Product, int]:
    """Groups of 128 with scales in float16."""
    codes = torch.randint(1 << bits, (n, k), dtype=torch.uint8, device=device)
    if more.get("values") == "e4m3":
        codes &= 0xF7  # no byte that is not a number
    scales = Groups(torch.rand(-(-k // 128), n, device=device).half())
    weight = pack(GroupedWeight((codes,), "codes", n, k, bits, 128, scales, **more))
    return lambda x: matmul_grouped(x, weight), weight.nbytes


FORMATS: Mapping[str, Maker] = {
    "bfloat16": _plain,
    "4 bits": lambda n, k, device: _coded(n, k, 4, device, zeros=8),
    "8 bits": lambda n, k, device: _coded(n, k, 8, device, zeros=128),
    "fp8": lambda n, k, device: _coded(n, k, 8, device, values="e4m3"),
}


def _copies(make: Maker, n: int, k: int, scale: Scale) -> Iterator[tuple[Product, int]]:
    product, size = make(n, k, scale.platform.device)
    yield product, size
    for _ in range(min(MOST_COPIES, scale.cold_bytes // size)):
        yield make(n, k, scale.platform.device)


def _seconds(x: Tensor, products: list[Product], scale: Scale) -> float:
    """Of one product."""

    def in_turn() -> None:
        for product in products:
            product(x)

    launch = _replay(in_turn, scale.platform)
    return seconds_each(launch, times=scale.steps, platform=scale.platform) / len(products)


def _replay(launch: Callable[[], None], platform: Platform) -> Callable[[], object]:
    """The same work without the host's part in it, where there are device graphs."""
    if platform.kind == "cpu":
        return launch
    launch()
    platform.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph.replay


def _told(name: str, n: int, k: int, rows: int, seconds: float, least: float) -> dict[str, Any]:
    return {
        "format": name,
        "outputs": n,
        "inputs": k,
        "rows": rows,
        "us": round(seconds * 1e6, 1),
        "share": round(least / seconds, 3),
    }
