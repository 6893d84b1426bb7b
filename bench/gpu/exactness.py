"""The engine's answers beside those of transformers + PEFT, on a small Llama with four adapters, made on the spot.

In float32 the greedy tokens must be equal, with device graphs and without. In bfloat16 nobody's tokens are exact: the
errors of both against float32 are told, and Aril's may not be much the larger. Reads tests/builders, which the script
puts on the path.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from builders.adapters import load_base, make_adapter
from builders.models import make_model
from torch import Tensor

from ...engine.llm import LLM
from ...engine.params import SamplingParams
from .reference import Answer, Reference
from .report import Report
from .rows import MixedRows
from .scale import Scale

ADAPTERS: Mapping[str, dict[str, Any]] = {
    "qv": {"r": 8, "targets": ("q_proj", "v_proj")},
    "all": {"r": 16, "targets": "all-linear"},
    "mlp": {"r": 4, "targets": ("gate_proj", "up_proj", "down_proj")},
    "wide": {"r": 96, "targets": ("q_proj", "k_proj", "v_proj", "o_proj")},
}
TIE = 1e-3  # a token whose lead is smaller may go either way: sums differ in their order
MOST_ERROR = 1e-3  # of a float32 logit
MOST_OVER = 3.0  # Aril's bfloat16 error over that of transformers


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt, for the base or one adapter, and what must come out."""

    adapter: str | None
    prompt: list[int]
    answer: Answer

    @property
    def text(self) -> list[int]:
        """Prompt and answer."""
        return self.prompt + self.answer.tokens


@dataclass(frozen=True, slots=True)
class Case:
    """The model, its adapters, and all jobs, which run in one batch."""

    model: Path
    adapters: Mapping[str, Path]
    jobs: Sequence[Job]


def run(report: Report, scale: Scale) -> None:
    """Each comparison tells its numbers and its problems."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "model", **scale.exact.config)
        adapters = _make_adapters(Path(folder), model)
        oracle = Reference(model, adapters, dtype=torch.float32, device=scale.platform.device)
        case = Case(model, adapters, _jobs(oracle, scale))
        _compare_tokens(report, case, scale)
        truth = [oracle.logits(job.adapter, job.text) for job in case.jobs]
        _compare_logits(report, case, scale, truth)
        _compare_graphs(report, case, scale)


def _make_adapters(home: Path, model: Path) -> dict[str, Path]:
    base = load_base(model)
    return {
        name: make_adapter(home / name, base, seed=seed, **kind) for seed, (name, kind) in enumerate(ADAPTERS.items())
    }


def _jobs(oracle: Reference, scale: Scale) -> list[Job]:
    drawn = random.Random(0)
    prompts = [[drawn.randrange(3, 500) for _ in range(drawn.randrange(3, 70))] for _ in range(scale.exact.num_prompts)]
    return [
        Job(adapter, prompt, oracle.greedy(adapter, prompt, scale.exact.num_tokens))
        for prompt in prompts
        for adapter in (None, *ADAPTERS)
    ]


def _compare_tokens(report: Report, case: Case, scale: Scale) -> None:
    """float32: graphs and eager each as the reference; bfloat16: graphs as eager, told only."""
    for eager in (False, True):
        ways = [_verdict(job, found) for job, found in zip(case.jobs, _answers(case, eager, "float32"), strict=True)]
        name = "float32_eager" if eager else "float32_graphs"
        report.set(name, {way: ways.count(way) for way in ("equal", "tie", "other")})
        wrong = f"{ways.count('other')} of {len(ways)} answers"
        report.expect("other" not in ways, f"{name}: {wrong} are not those of transformers + PEFT")
    one, other = _answers(case, False, "bfloat16"), _answers(case, True, "bfloat16")
    same = sum(a == b for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))
    report.set("bfloat16_graphs_as_eager", round(same / sum(map(len, one)), 4))


def _answers(case: Case, eager: bool, dtype: str) -> list[list[int]]:
    """Greedy tokens of all jobs from the whole engine, its prompts cut into chunks."""
    llm = LLM(
        str(case.model),
        adapters=dict(case.adapters),
        dtype=dtype,
        enforce_eager=eager,
        max_num_seqs=16,
        max_num_batched_tokens=128,
        kv_cache_memory="128MiB",
        adapter_memory="64MiB",
    )
    params = SamplingParams(temperature=0.0, max_tokens=len(case.jobs[0].answer.tokens), ignore_eos=True)
    prompts, adapters = [job.prompt for job in case.jobs], [job.adapter for job in case.jobs]
    outputs = llm.generate(prompts, params, adapter=adapters, use_tqdm=False)
    llm.close()
    return [output.outputs[0].token_ids for output in outputs]


def _verdict(job: Job, found: Sequence[int]) -> str:
    """equal; tie = the first other token was a matter of rounding; other."""
    pairs = zip(job.answer.tokens, found, job.answer.leads, strict=True)
    lead = next((lead for wanted, got, lead in pairs if wanted != got), None)
    return "equal" if lead is None else "tie" if lead < TIE else "other"


def _compare_logits(report: Report, case: Case, scale: Scale, truth: Sequence[Tensor]) -> None:
    """Every position of every text, all in one batch."""
    errors = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        ours = MixedRows.load(case.model, case.adapters, dtype, scale.platform).all_logits(_texts(case))
        oracle = Reference(case.model, case.adapters, dtype=dtype, device=scale.platform.device)
        theirs = [oracle.logits(job.adapter, job.text) for job in case.jobs]
        for who, found in (("aril", ours), ("transformers", theirs)):
            errors[who, name] = max(float((a - b).abs().max()) for a, b in zip(found, truth, strict=True))
            agreed = torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in zip(found, truth, strict=True)])
            report.set(
                f"{who}_{name}",
                {"max_logit_error": errors[who, name], "tokens_as_float32": float(agreed.float().mean())},
            )
    report.expect(errors["aril", "float32"] < MOST_ERROR, "float32 logits are too far from transformers'")
    bound = MOST_OVER * errors["transformers", "bfloat16"]
    report.expect(errors["aril", "bfloat16"] < bound, "bfloat16 logits are much less exact than transformers'")


def _compare_graphs(report: Report, case: Case, scale: Scale) -> None:
    """Replays against eager passes on the same rows: in a graph's first use, and again with other adapters in it."""
    if scale.platform.kind == "cpu":
        report.set("graph_replay_error", "no device graphs on a CPU")
        return
    rows = MixedRows.load(case.model, case.adapters, torch.float32, scale.platform)
    error = rows.replay_error(_texts(case)[:13])
    report.set("graph_replay_error", error)
    report.expect(error < MOST_ERROR, f"replayed logits differ from eager ones by {error}")


def _texts(case: Case) -> list[tuple[str | None, list[int]]]:
    return [(job.adapter, job.text) for job in case.jobs]
