"""The exactness trial: greedy tokens in float32 beside those of transformers + PEFT, for the base and its adapters.

    python -m aril.bench.exactness --json exactness.json

All prompts on the base and on every adapter run in one mixed batch; the reference then reads each answer and says which
token it would have chosen at every position. The same rows are run again on the warm prefix cache, in chunks of 32
tokens, with so little KV cache that they preempt each other, and one at a time; their tokens must be those of the mixed
batch. Base rows must keep every bit of their log-probabilities when the rows beside them have no adapters.

The 20 most likely log-probabilities that the engine reports are compared at each position, and, in a pass of all rows
of a prompt together, every logit of the whole vocabulary.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core import metrics
from ..core.platform import detect
from ..engine.config import parse_bytes
from ..engine.llm import LLM, RequestOutput
from ..engine.params import MAX_LOGPROBS, SamplingParams
from ..engine.text import Text
from ..lora.config import CONFIG_FILE
from ..models.source import locate
from .gpu.rows import MixedRows

EXAMPLES = Path(__file__).parents[1] / "examples" / "adapters"
NUM_ADAPTERS = 4
TOLERANCE = 1e-3
BLOCK_SIZE = 16
ASKED = (
    "What is {}?",
    "Tell me about {} in two sentences.",
    "Name three facts about {}.",
    "Write a short letter to a friend about {}.",
    "Why do people care about {}?",
    "How would you explain {} to a child?",
    "List five words that go with {}.",
    "Which question about {} would you ask an expert, and what would they say?",
)
TOPICS = ("the sea", "a table of orders and their customers", "pomegranates", "the history of bread", "night trains")
FLAGS: Mapping[str, Mapping[str, Any]] = {
    "chunks of 32": {"max_num_batched_tokens": 32, "max_num_seqs": 32},
    "one at a time": {"max_num_seqs": 1},
}


@dataclass(slots=True)
class Report:
    """What was found."""

    rows: int
    tokens: int
    adapters: tuple[str, ...]
    differing_rows: list[str] = field(default_factory=list)
    max_logprob_difference: float = 0.0
    max_logit_difference: float = 0.0
    differing_when: dict[str, int] = field(default_factory=dict)  # the way of running -> rows with other tokens
    preemptions: int = 0
    base_rows_with_other_bits: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether any claim does not hold."""
        return bool(
            self.differing_rows
            or max(self.max_logprob_difference, self.max_logit_difference) > TOLERANCE
            or any(self.differing_when.values())
            or self.base_rows_with_other_bits
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """The rows, and how engines for them are made."""

    model: str
    adapters: Mapping[str, Path]
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    kv_cache_memory: int

    @property
    def num_rows(self) -> int:
        """Every prompt on the base and on every adapter."""
        return len(self.prompts) * (1 + len(self.adapters))

    def engine(self, **flags: Any) -> LLM:
        """An engine that takes all rows at once, unless `flags` say otherwise."""
        roomy = {
            "max_num_seqs": self.num_rows,
            "max_num_batched_tokens": max(512, self.num_rows),
            "kv_cache_memory": self.kv_cache_memory,
            "block_size": BLOCK_SIZE,
        }
        return LLM(self.model, adapters=self.adapters, dtype="float32", device="cpu", **{**roomy, **flags})

    def run(self, llm: LLM, *, only_base: bool = False) -> list[RequestOutput]:
        """All rows through one engine."""
        who = [None if only_base else name for _ in self.prompts for name in (None, *self.adapters)]
        return llm.generate(
            [p for p in self.prompts for _ in (None, *self.adapters)], self.params, adapter=who, use_tqdm=False
        )

    def tight_memory(self) -> int:
        """KV cache, by the count of the newest engine, for the prompts of a quarter of the rows: answers preempt."""
        longest = max(map(len, self.prompts))
        whole_row = (longest + (self.params.max_tokens or 0)) // BLOCK_SIZE + 1
        num_blocks = max(whole_row, max(2, self.num_rows // 4) * (longest // BLOCK_SIZE + 1))
        return num_blocks * int(self.kv_cache_memory // _metric("aril_kv_blocks"))


class Reference:
    """transformers with PEFT, in float32."""

    def __init__(self, model: str, adapters: Mapping[str, Path]) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(**_where(model), dtype=torch.float32).eval()
        self._has_adapters = bool(adapters)
        for at, (name, folder) in enumerate(adapters.items()):
            if at == 0:
                self._model = PeftModel.from_pretrained(self._model, str(folder), adapter_name=name).eval()
            else:
                self._model.load_adapter(str(folder), adapter_name=name)

    @torch.inference_mode()
    def logits(self, adapter: str | None, tokens: Sequence[int]) -> Tensor:
        """[tokens, vocab]"""
        if adapter is not None:
            self._model.set_adapter(adapter)
        bare = adapter is None and self._has_adapters
        with self._model.disable_adapter() if bare else nullcontext():
            found: Tensor = self._model(input_ids=torch.tensor([tokens])).logits[0]
        return found


def examine(trial: Trial) -> Report:
    """Run everything and compare."""
    report = Report(trial.num_rows, trial.params.max_tokens or 0, tuple(trial.adapters))
    llm = trial.engine()
    tight = trial.tight_memory()
    with _timed(report, "mixed batch"):
        mixed = trial.run(llm)
    with _timed(report, "reference"):
        _compare_with_reference(trial, mixed, report)
    _compare(trial, "warm prefix cache", llm, mixed, report)
    llm = trial.engine()
    with _timed(report, "only base rows"):
        report.base_rows_with_other_bits = _num_other_bits(mixed, trial.run(llm, only_base=True))
    llm.close()
    for name, flags in FLAGS.items():
        _compare(trial, name, trial.engine(**flags), mixed, report)
    before = _metric("aril_preemptions_total")
    _compare(trial, "preempted", trial.engine(kv_cache_memory=tight, enable_prefix_caching=False), mixed, report)
    report.preemptions = round(_metric("aril_preemptions_total") - before)
    return report


def _compare_with_reference(trial: Trial, outputs: Sequence[RequestOutput], report: Report) -> None:
    reference = Reference(trial.model, trial.adapters)
    network = MixedRows.load(trial.model, trial.adapters, torch.float32, detect("cpu"))
    together = 1 + len(trial.adapters)  # the rows of one prompt follow each other
    for at in range(0, len(outputs), together):
        rows = outputs[at : at + together]
        texts = [(row.adapter, [*row.prompt_token_ids, *row.outputs[0].token_ids]) for row in rows]
        for row, (adapter, tokens), ours in zip(rows, texts, network.all_logits(texts), strict=True):
            theirs = reference.logits(adapter, tokens)
            report.max_logit_difference = max(report.max_logit_difference, (ours - theirs).abs().max().item())
            _compare_answer(row, theirs[len(row.prompt_token_ids) - 1 : -1], report)


def _compare_answer(row: RequestOutput, expected: Tensor, report: Report) -> None:
    """The tokens and log-probabilities of one answer beside the reference's logits [answer, vocab]."""
    answer = row.outputs[0]
    if expected.argmax(dim=-1).tolist() != answer.token_ids:
        report.differing_rows.append(f"{row.adapter or 'base'} {row.request_id}")
    for ours, theirs in zip(answer.logprobs or (), torch.log_softmax(expected, dim=-1), strict=True):
        near = torch.tensor(list(ours.top.values())) - theirs[list(ours.top)]
        report.max_logprob_difference = max(report.max_logprob_difference, near.abs().max().item())


def _compare(trial: Trial, name: str, llm: LLM, mixed: Sequence[RequestOutput], report: Report) -> None:
    with _timed(report, name):
        again = trial.run(llm)
    llm.close()
    pairs = zip(mixed, again, strict=True)
    report.differing_when[name] = sum(a.outputs[0].token_ids != b.outputs[0].token_ids for a, b in pairs)


def _num_other_bits(mixed: Sequence[RequestOutput], base: Sequence[RequestOutput]) -> int:
    rows = [(a, b) for a, b in zip(mixed, base, strict=True) if a.adapter is None]
    return sum(a.outputs[0].logprobs != b.outputs[0].logprobs for a, b in rows)


def _where(model: str) -> dict[str, Any]:
    """Arguments of `from_pretrained` for what Aril would serve."""
    from transformers import GgufConfig

    source = locate(model)
    if source.kind == "folder":
        return {"pretrained_model_name_or_path": source.path}
    dequantised = GgufConfig(dequantize=True)
    file = source.path
    return {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name, "quantization_config": dequantised}


def _prompts(model: str, count: int) -> list[list[int]]:
    text = Text.load(locate(model))
    questions = [question.format(topic) for question in ASKED for topic in TOPICS]
    return [text.render([{"role": "user", "content": question}]) for question in itertools.islice(questions, count)]


def _metric(name: str) -> float:
    return metrics.REGISTRY.get_sample_value(name) or 0.0


@contextmanager
def _timed(report: Report, name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    report.seconds[name] = round(time.perf_counter() - start, 1)
    print(f"... {name}: {report.seconds[name]} s", flush=True)


def _show(report: Report) -> None:
    print(f"{report.rows} rows of {report.tokens} greedy tokens: the base and {', '.join(report.adapters)}")
    print(f"rows whose tokens differ from transformers + PEFT: {len(report.differing_rows)} {report.differing_rows}")
    print(f"largest difference of a log-probability: {report.max_logprob_difference:.2e} (at most {TOLERANCE:g})")
    print(f"largest difference of a logit: {report.max_logit_difference:.2e} (at most {TOLERANCE:g})")
    for name, differing in report.differing_when.items():
        print(f"rows whose tokens differ from the mixed batch, {name}: {differing}")
    unproved = "" if report.preemptions else " (none: ask for more prompts or tokens)"
    print(f"preemptions in the preempted run: {report.preemptions}{unproved}")
    print(f"base rows with other bits beside base rows only: {report.base_rows_with_other_bits}")
    print("FAILED" if report.failed else "exact")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trial of the command line; 1 when a claim does not hold."""
    parser = argparse.ArgumentParser(prog="python -m aril.bench.exactness", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="the base (demo)")
    parser.add_argument("--adapters", type=Path, default=EXAMPLES, help="a folder of PEFT folders (the examples)")
    parser.add_argument("--prompts", type=int, default=len(ASKED) * len(TOPICS), help="prompts, 40 at most (40)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer (64)")
    parser.add_argument("--kv-cache-memory", type=parse_bytes, default=parse_bytes("2GiB"), help="(2GiB)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there")
    args = parser.parse_args(argv)
    folders = sorted(path.parent for path in args.adapters.glob(f"*/{CONFIG_FILE}"))[:NUM_ADAPTERS]
    params = SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True, logprobs=MAX_LOGPROBS)
    prompts = _prompts(args.model, args.prompts)
    report = examine(Trial(args.model, {f.name: f for f in folders}, prompts, params, args.kv_cache_memory))
    _show(report)
    if args.json is not None:
        args.json.write_text(json.dumps(asdict(report), indent=2) + "\n")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
