"""OpenVINO GenAI's continuous batching as a worker: how long it takes for rows of tokens.

Runs under an interpreter that has openvino_genai; needs nothing of Aril.
"""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from jobs import Answers, Job, work  # type: ignore[import-not-found]  # a program's own folder


def start(job: Job) -> tuple[Any, Answers]:
    """`model`, a folder of OpenVINO's files, the fields of its `scheduler`, and the `properties` of its device."""
    import numpy as np
    import openvino  # type: ignore[import-not-found]
    import openvino_genai  # type: ignore[import-not-found]

    began = time.perf_counter()
    scheduler = openvino_genai.SchedulerConfig()
    for name, value in job["scheduler"].items():
        setattr(scheduler, name, value)
    pipeline = openvino_genai.ContinuousBatchingPipeline(job["model"], scheduler, "CPU", job["properties"])
    seconds = time.perf_counter() - began
    ids = count()

    def speed(job: Job) -> dict[str, Any]:
        """`prompts` continued by `output_len` tokens each, all at once; no row may ask for an adapter."""
        assert not any(job["adapters"])
        wanted = openvino_genai.GenerationConfig(max_new_tokens=job["output_len"], ignore_eos=True, do_sample=False)
        began = time.perf_counter()
        rows = [
            pipeline.add_request(next(ids), openvino.Tensor(np.array([prompt], np.int64)), wanted)
            for prompt in job["prompts"]
        ]
        stamps: list[list[float]] = [[] for _ in rows]
        tokens: list[list[int]] = [[] for _ in rows]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            now = time.perf_counter() - began
            for at, row in enumerate(rows):
                while row.can_read():
                    new = next(iter(row.read().values())).generated_ids
                    tokens[at].extend(map(int, new))
                    stamps[at].extend([now] * len(new))
        return {"seconds": time.perf_counter() - began, "stamps": stamps, "tokens": tokens}

    return {"load_s": seconds}, {"speed": speed}


if __name__ == "__main__":
    work(start)
