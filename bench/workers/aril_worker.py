"""Aril's engine as a worker: how long it takes for rows of tokens."""

from __future__ import annotations

import time
from typing import Any

from ...engine.llm import LLM
from ...engine.params import SamplingParams
from .jobs import Answers, Job, work


def start(job: Job) -> tuple[Any, Answers]:
    """`model`, `adapters` (name -> folder) and `flags` of the engine."""
    began = time.perf_counter()
    llm = LLM(job["model"], adapters=job["adapters"], **job["flags"])
    seconds = time.perf_counter() - began

    def speed(job: Job) -> dict[str, Any]:
        """`prompts` continued by `output_len` tokens each, row i on adapter i of `adapters`, all at once."""
        params = SamplingParams(temperature=0.0, max_tokens=job["output_len"], ignore_eos=True)
        began = time.perf_counter()
        found = llm.generate(job["prompts"], params, adapter=job["adapters"], use_tqdm=False)
        seconds = time.perf_counter() - began
        stamps = [[at - began for at in row.metrics.tokens] for row in found]
        return {"seconds": seconds, "stamps": stamps, "tokens": [row.outputs[0].token_ids for row in found]}

    return {"load_s": seconds}, {"speed": speed}


if __name__ == "__main__":
    work(start)
