"""llama.cpp as a worker, through llama-cpp-python: how long it takes for rows of tokens, one row after the other.

Runs under an interpreter that has llama_cpp; needs nothing of Aril.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

from jobs import Answers, Job, work  # type: ignore[import-not-found]  # a program's own folder


def start(job: Job) -> tuple[Any, Answers]:
    """`model`, a .gguf file, and `flags` of the engine."""
    from llama_cpp import Llama  # type: ignore[import-not-found]

    began = time.perf_counter()
    llama = Llama(model_path=job["model"], verbose=False, **job["flags"])
    seconds = time.perf_counter() - began

    def row(prompt: list[int], output_len: int, began: float) -> tuple[list[int], list[float]]:
        """Greedy: temperature 0 takes the most likely token, and `generate` itself never ends."""
        tokens, stamps = [], []
        for token in islice(llama.generate(prompt, temp=0.0, repeat_penalty=1.0, reset=True), output_len):
            tokens.append(int(token))
            stamps.append(time.perf_counter() - began)
        return tokens, stamps

    def speed(job: Job) -> dict[str, Any]:
        """`prompts` continued by `output_len` tokens each; no row may ask for an adapter."""
        assert not any(job["adapters"])
        began = time.perf_counter()
        found = [row(prompt, job["output_len"], began) for prompt in job["prompts"]]
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "stamps": [each[1] for each in found], "tokens": [each[0] for each in found]}

    return {"load_s": seconds}, {"speed": speed}


if __name__ == "__main__":
    work(start)
