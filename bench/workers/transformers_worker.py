"""transformers, and PEFT for adapters, as a worker: how long it takes for rows of tokens, how well it foretells given
tokens, and, as a judge of others, which token it would have taken where they took theirs.

Runs under any interpreter that has transformers and the tools; needs nothing of Aril.
"""

from __future__ import annotations

import time
from typing import Any

from jobs import Answers, Job, work  # type: ignore[import-not-found]  # a program's own folder

BASE = "__base__"  # what PEFT calls the base among the adapters of rows
CONTINUOUS = {"num_blocks": 364, "max_batch_tokens": 2048, "max_requests_per_batch": 64}  # 2 GiB of KV for SmolLM2-135M


def start(job: Job) -> tuple[Any, Answers]:
    """`path` and `gguf_file` (or None) of the checkpoint, `dtype` to compute in, `threads`, `adapters` (name -> folder)
    and `batching` (static or continuous).
    """
    import torch

    if job["threads"]:
        torch.set_num_threads(job["threads"])
    began = time.perf_counter()
    network = _loaded(job)
    seconds = time.perf_counter() - began
    speed = {"static": _static, "continuous": _continuous}[job.get("batching", "static")]
    answers = {
        "speed": lambda asked: speed(network, asked),
        "losses": lambda asked: _losses(network, asked),
        "judge": lambda asked: _judge(network, asked),
        "save": lambda asked: _save(network, job, asked),
    }
    return {"load_s": seconds, "kind": type(network).__name__}, answers


def _loaded(job: Job) -> Any:
    """The network, with the adapters on it where there are any."""
    import torch
    from transformers import AutoModelForCausalLM

    unpacked = {}
    if job["gguf_file"]:
        from transformers import GgufConfig

        unpacked = {"gguf_file": job["gguf_file"], "quantization_config": GgufConfig(dequantize=True)}
    dtype = getattr(torch, job["dtype"])
    network: Any = AutoModelForCausalLM.from_pretrained(job["path"], dtype=dtype, **unpacked).eval()
    adapters = list(job.get("adapters", {}).items())
    if not adapters:
        return network
    from peft import PeftModel

    network = PeftModel.from_pretrained(network, adapters[0][1], adapter_name=adapters[0][0])
    for name, folder in adapters[1:]:
        network.load_adapter(folder, adapter_name=name)
    return network.eval()


def _static(network: Any, job: Job) -> dict[str, Any]:
    """`prompts`, all of one length, continued by `output_len` tokens each in one batch."""
    import torch

    began = time.perf_counter()
    stamps: list[float] = []

    def stamp(ids: Any, scores: Any) -> Any:
        stamps.append(time.perf_counter() - began)
        return torch.zeros(len(ids), dtype=torch.bool)

    length = job["output_len"]
    prompts = torch.tensor(job["prompts"])
    with torch.inference_mode():
        found = network.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            min_new_tokens=length,
            max_new_tokens=length,
            stopping_criteria=[stamp],
            **_of_rows(network, job["adapters"]),
        )
    seconds = time.perf_counter() - began
    tokens = found[:, prompts.shape[1] :].tolist()
    return {"seconds": seconds, "stamps": [stamps] * len(tokens), "tokens": tokens}


def _continuous(network: Any, job: Job) -> dict[str, Any]:
    """`prompts` continued by `output_len` tokens each, in transformers' continuous batching; without adapters.

    Its manager is kept, since making one fills the whole KV cache with zeros.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig

    assert not any(job["adapters"])
    wanted = GenerationConfig(max_new_tokens=job["output_len"], do_sample=False, eos_token_id=-1)
    began = time.perf_counter()
    found = network.generate_batch(
        job["prompts"],
        generation_config=wanted,
        continuous_batching_config=ContinuousBatchingConfig(**CONTINUOUS),
        record_timestamps=True,
        persistent_manager=True,
    )
    seconds = time.perf_counter() - began
    rows = list(found.values())
    if any(row.error for row in rows) or len(rows) < len(job["prompts"]):
        raise RuntimeError(f"generate_batch: {[row.error for row in rows]}")
    stamps = [[at - began for at in row.timestamps] for row in rows]
    return {"seconds": seconds, "stamps": stamps, "tokens": [list(row.generated_tokens) for row in rows]}


def _of_rows(network: Any, adapters: list[str | None]) -> dict[str, Any]:
    return {"adapter_names": [name or BASE for name in adapters]} if hasattr(network, "peft_config") else {}


def _losses(network: Any, job: Job) -> list[list[float]]:
    """Of each token of each of `windows` but the first: minus its log-probability."""
    import torch

    found = []
    for window in job["windows"]:
        tokens = torch.tensor([window])
        with torch.inference_mode():
            logits = network(input_ids=tokens).logits[0, :-1].float()
        found.append(torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none").tolist())
    return found


def _judge(network: Any, job: Job) -> list[list[list[float]]]:
    """Of each token that `prompts` were continued by in `tokens`, row i on adapter i of `adapters`: by how much its
    logit is under the highest, and by how much the second is under the highest.
    """
    import torch

    found = []
    for prompt, tokens, name in zip(job["prompts"], job["tokens"], job["adapters"], strict=True):
        ids = torch.tensor([[*prompt, *tokens[:-1]]])
        with torch.inference_mode():
            logits = network(input_ids=ids, logits_to_keep=len(tokens), **_of_rows(network, [name])).logits[0].float()
        highest = logits.topk(2).values  # [tokens, 2]
        taken = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        found.append(torch.stack([highest[:, 0] - taken, highest[:, 0] - highest[:, 1]], 1).tolist())
    return found


def _save(network: Any, loaded: Job, job: Job) -> None:
    """Write the checkpoint to `folder` with its tokenizer, in the dtype it was loaded in."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(loaded["path"], gguf_file=loaded["gguf_file"])
    network.save_pretrained(job["folder"])
    tokenizer.save_pretrained(job["folder"])


if __name__ == "__main__":
    work(start)
