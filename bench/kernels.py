"""Every op by every provider that can run here: `python -m aril.bench.kernels [--op linear] [--threads 2]`.

Inputs are the serving-size cases that each op declares for the conformance test. Copies of them take turns until they
exceed any cache, because weights, adapters and KV come from memory when a model runs. Best of several rounds.

`ceiling` is the share of what the machine was measured to do at most: the time that reading the arguments or doing the
operations would take, whichever is longer, over the time taken. The probe is torch's own; a kernel may be above it.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

from ..core.platform import Platform, detect
from ..kernels import dispatch
from ..kernels.cases import Case, Inputs
from ..kernels.ops.matmul import Weight
from .ceiling import Ceiling, measure

COLD_BYTES = 256 << 20  # of arguments in turn: more than the last-level cache of most machines
MAX_COPIES = 64
SECONDS = 0.3  # for each measurement


def main() -> None:
    """Print one line for each case, dtype and provider."""
    options = _options()
    platform = detect()
    torch.set_num_threads(options.threads)
    print(f"{platform.kind} {platform.arch}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    ceiling = measure(platform.device, platform.synchronize)
    print(ceiling)
    head = f"{'op':16} {'case':38} {'dtype':9} {'provider':10} {'us':>10} {'GB/s':>7} {'GFLOP/s':>8}"
    print(f"{head} {'ceiling':>7} {'x':>6}")
    for name, op in dispatch.ops().items():
        if options.op in (None, name):
            for dtype in options.dtype:
                _measure(name, op, getattr(torch, dtype), platform, ceiling)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m aril.bench.kernels", description=main.__doc__)
    parser.add_argument("--op", choices=sorted(dispatch.ops()))
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def _measure(name: str, op: dispatch.Op[..., object], dtype: torch.dtype, platform: Platform, ceiling: Ceiling) -> None:
    assert op.case_maker is not None
    for case in op.case_maker(Inputs(platform.device, dtype)):
        if not case.large:
            continue
        runs = [p for p, no in op.refusals(*case.args, **case.kwargs).items() if no is None and _is_real(p)]
        seconds = {provider: _seconds(op, provider, case, platform) for provider in runs}
        for provider, taken in seconds.items():
            num_bytes, flops = sum(tensor.nbytes for tensor in _tensors(case.args)), _flops(case)
            rates = f"{num_bytes / taken / 1e9:7.1f} {f'{flops / taken / 1e9:.1f}' if flops else '':>8}"
            share = ceiling.seconds(num_bytes, flops, dtype) / taken
            times = seconds[dispatch.REFERENCE] / taken
            row = f"{name:16} {case.label[:38]:38} {str(dtype)[6:]:9} {provider:10} {taken * 1e6:10.1f}"
            print(f"{row} {rates} {share:7.0%} {times:6.1f}", flush=True)


def _is_real(provider: str) -> bool:
    return provider == dispatch.REFERENCE or dispatch.is_automatic(provider)


def _seconds(op: dispatch.Op[..., object], provider: str, case: Case, platform: Platform) -> float:
    """The best round's time for one call."""
    size = sum(tensor.nbytes for tensor in _tensors(case.args))
    turns = [copy.deepcopy(case.args) for _ in range(max(3, min(MAX_COPIES, COLD_BYTES // size)))]
    best, end = float("inf"), time.perf_counter() + SECONDS
    with op.force(provider):
        while time.perf_counter() < end or best == float("inf"):
            platform.synchronize()
            started = time.perf_counter()
            for args in turns:
                op(*args, **case.kwargs)
            platform.synchronize()
            best = min(best, (time.perf_counter() - started) / len(turns))
    return best


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value):
        yield from _tensors(tuple(getattr(value, field.name) for field in fields(value)))


def _flops(case: Case) -> float:
    """Of a product with a Weight, which alone has an agreed count; 0 of others."""
    return sum(2.0 * len(case.args[0]) * value.n * value.k for value in case.args if isinstance(value, Weight))


if __name__ == "__main__":
    main()
