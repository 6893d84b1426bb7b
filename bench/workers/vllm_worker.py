"""vLLM as a worker: how long it takes for rows of tokens, and how well it foretells given tokens.

Runs under vLLM's own interpreter; needs nothing of Aril.
"""

from __future__ import annotations

import os
import time
from itertools import count
from typing import Any

from jobs import Answers, Job, work  # type: ignore[import-not-found]  # a program's own folder


def start(job: Job) -> tuple[Any, Answers]:
    """`model` and `flags` of the engine, `adapters` (name -> folder)."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
    from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]

    began = time.perf_counter()
    llm = LLM(job["model"], disable_log_stats=False, **job["flags"])
    seconds = time.perf_counter() - began
    folders = job.get("adapters", {})
    asked = {name: LoRARequest(name, at, folder) for at, (name, folder) in enumerate(folders.items(), 1)}
    for request in asked.values():
        llm.llm_engine.add_lora(request)
    ids = count()

    def speed(job: Job) -> dict[str, Any]:
        """`prompts` continued by `output_len` tokens each, row i on adapter i of `adapters`, all at once.

        What `LLM.generate` does, step by step: it tells only of the first and the last token when they came.
        """
        params = SamplingParams(temperature=0.0, max_tokens=job["output_len"], ignore_eos=True)
        began = time.perf_counter()
        rows = {str(next(ids)): name for name in job["adapters"]}
        for (row, name), prompt in zip(rows.items(), job["prompts"], strict=True):
            llm.llm_engine.add_request(row, {"prompt_token_ids": prompt}, params, lora_request=asked.get(name))
        stamps: dict[str, list[float]] = {row: [] for row in rows}
        tokens: dict[str, list[int]] = {}
        while llm.llm_engine.has_unfinished_requests():
            for out in llm.llm_engine.step():
                tokens[out.request_id] = list(out.outputs[0].token_ids)
                come = stamps[out.request_id]
                come += [time.perf_counter() - began] * (len(tokens[out.request_id]) - len(come))
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "stamps": list(stamps.values()), "tokens": [tokens[row] for row in rows]}

    def losses(job: Job) -> list[list[float]]:
        """Of each token of each of `windows` but the first: minus its log-probability."""
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        found = llm.generate([{"prompt_token_ids": row} for row in job["windows"]], params, use_tqdm=False)
        return [_losses(row, out.prompt_logprobs) for row, out in zip(job["windows"], found, strict=True)]

    return {"load_s": seconds}, {"speed": speed, "losses": losses}


def _losses(tokens: list[int], told: list[Any]) -> list[float]:
    """vLLM tells a table of each prompt token but the first, in which the token itself always stands."""
    return [-each[token].logprob for token, each in zip(tokens[1:], told[1:], strict=True)]


if __name__ == "__main__":
    work(start)
