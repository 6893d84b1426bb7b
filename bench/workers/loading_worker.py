"""Loads a model once, in a process that has imported everything before and does nothing else.

Its config is opened before too: that imports transformers' class for it, which brings half of torch.distributed along.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from ...engine import llm  # noqa: F401 -- for the baseline: what any process with an engine has in memory
from ...models.loader import load_model
from ...models.opened import open_model
from ...models.source import locate
from .jobs import Answers, Job, work


def start(job: Job) -> tuple[Any, Answers]:
    """`model`, `dtype`, `threads`, and `more` arguments of `load_model`."""
    torch.set_num_threads(job["threads"])
    torch.zeros(256, 256) @ torch.zeros(256, 256)  # its thread pool and libraries are no part of a model
    source, kept = locate(job["model"]), []
    began = time.perf_counter()
    open_model(source)
    opening = time.perf_counter() - began

    def load(_: Job) -> dict[str, float]:
        began, worked = time.perf_counter(), time.process_time()
        kept.append(load_model(source, dtype=job["dtype"], device=torch.device("cpu"), **job["more"]))
        took = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - worked}
        return {**took, "weight_bytes": kept[0].weight_bytes}

    return {"seconds": opening}, {"load": load}


if __name__ == "__main__":
    work(start)
