"""The perplexity of a model on a text that the project ships, beside that of others and of other readers of its files.

    python -m aril.bench.perplexity demo                                              (two minutes on two cores)
    python -m aril.bench.perplexity BF16 GPTQ AWQ --dtype float32 --with transformers --json found.json
    python -m aril.bench.perplexity GPTQ --with vllm --python VLLM_ENVIRONMENT/bin/python

Of several models each is compared with the first. The text, data/persuasion.txt, is chapters 1 to 7 of Jane Austen's
novel "Persuasion" (1817), one line to a paragraph: in the public domain everywhere, as its author died in 1817. It was
taken from the Debian package r-cran-janeaustenr, which has it from Project Gutenberg, without their words around it.

It is cut into windows that do not overlap and share nothing (40 of 512 tokens: 20,480); the first token of a window is
not foretold. The tokens of all windows count alike: exp(mean of minus log-probabilities).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..core.errors import InvalidRequest
from ..engine.llm import LLM, RequestOutput
from ..engine.params import SamplingParams
from ..engine.text import Text
from ..models.source import locate
from .worker import Worker

TEXT = Path(__file__).parent / "data" / "persuasion.txt"
WINDOW = 512
NUM_WINDOWS = 40

Windows = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Reading:
    """How well a text was foretold."""

    losses: Sequence[float]  # minus the log-probability of each foretold token
    seconds: float

    @property
    def perplexity(self) -> float:
        return math.exp(statistics.fmean(self.losses))

    def beside(self, other: Reading) -> tuple[float, float]:
        """By how many percent this perplexity is over another's of the same tokens, and the standard error of that."""
        apart = [ours - theirs for ours, theirs in zip(self.losses, other.losses, strict=True)]
        error = statistics.stdev(apart) / math.sqrt(len(apart))
        return 100 * math.expm1(statistics.fmean(apart)), 100 * error


def perplexity(
    model: str, *, text: str | None = None, num_windows: int = NUM_WINDOWS, window: int = WINDOW, **flags: Any
) -> float:
    """The perplexity of `model` on `text` (the shipped one by default); `flags` are fields of EngineConfig.

    Raises InvalidRequest for a text shorter than a window, and what loading the model raises.
    """
    return read(model, windows_of(model, text=text, num_windows=num_windows, window=window), **flags).perplexity


def windows_of(
    model: str, *, text: str | None = None, num_windows: int = NUM_WINDOWS, window: int = WINDOW
) -> list[list[int]]:
    """The first windows of a text in the tokens of `model`, as many of them as it fills up to `num_windows`."""
    content = TEXT.read_text(encoding="utf-8") if text is None else text
    tokens = Text.load(locate(model)).encode(content, add_special_tokens=False)
    count = min(num_windows, len(tokens) // window)
    if count < 1 or window < 2:
        raise InvalidRequest(f"a text of {len(tokens)} tokens fills no window of {window}", param="text")
    return [tokens[at * window : (at + 1) * window] for at in range(count)]


def read(model: str, windows: Windows, **flags: Any) -> Reading:
    """`windows` through Aril's engine, one after the other; `flags` are fields of EngineConfig."""
    length = max(map(len, windows))
    alone = {"max_num_seqs": 1, "max_num_batched_tokens": length, "enable_prefix_caching": False}
    small = {"adapter_memory": 1, "max_adapters": 1, "kv_cache_memory": "512MiB"}
    llm = LLM(model, **{**alone, **small, **flags})
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, logit_bias={})
    try:
        began = time.perf_counter()
        found = llm.generate(windows, params)
        seconds = time.perf_counter() - began
    finally:
        llm.close()
    return Reading([loss for output in found for loss in _losses(output)], seconds)


def _losses(output: RequestOutput) -> Iterator[float]:
    for told in (output.prompt_logprobs or ())[1:]:
        assert told is not None
        yield -told.logprob


def read_elsewhere(
    reader: str, model: str, windows: Windows, *, python: str = sys.executable, dtype: str = "float32"
) -> Reading:
    """The same windows through `transformers` or `vllm` in another environment; raises RuntimeError when it cannot."""
    job, env = _elsewhere(reader, model, max(map(len, windows)), dtype)
    with Worker.foreign(python, f"{reader}_worker", job, env) as worker:
        began = time.perf_counter()
        losses = worker.ask("losses", windows=windows)
        return Reading(list(chain.from_iterable(losses)), time.perf_counter() - began)


def _elsewhere(reader: str, model: str, length: int, dtype: str) -> tuple[dict[str, Any], Mapping[str, str]]:
    source = locate(model)
    if reader == "vllm":
        alone = {"max_model_len": length + 1, "max_num_seqs": 1, "enable_prefix_caching": False}
        flags = {"dtype": dtype, "enforce_eager": True, **alone}
        return {"model": str(source.path), "flags": flags}, {"VLLM_CPU_KVCACHE_SPACE": "1"}
    is_gguf = source.kind == "gguf"
    path = source.path.parent if is_gguf else source.path
    return {"path": str(path), "gguf_file": source.path.name if is_gguf else None, "dtype": dtype, "threads": None}, {}


def main() -> int:
    """Read each model and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a name or folder; all are compared with the first")
    parser.add_argument("--dtype", default="auto", help="what Aril computes in (auto)")
    parser.add_argument("--quantization", help="round the models on load, as `aril serve --quantization` does")
    parser.add_argument("--windows", type=int, default=NUM_WINDOWS, help=f"most windows ({NUM_WINDOWS})")
    parser.add_argument("--window", type=int, default=WINDOW, help=f"tokens in a window ({WINDOW})")
    parser.add_argument("--with", dest="reader", choices=("transformers", "vllm"), help="read the files with it too")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has it (this one)")
    parser.add_argument("--reader-dtype", default="float32", help="what it computes in (float32)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found, first = [], None
    for model in args.models:
        ours, row = _examined(model, args)
        first = first or ours
        row["over_first_percent"], row["standard_error_percent"] = ours.beside(first)
        found.append(row)
        print(_line(row), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _examined(model: str, args: argparse.Namespace) -> tuple[Reading, dict[str, Any]]:
    windows = windows_of(model, num_windows=args.windows, window=args.window)
    flags = {"dtype": args.dtype, **({"quantization": args.quantization} if args.quantization else {})}
    ours = read(model, windows, **flags)
    tokens = sum(map(len, windows))
    row = {
        "model": model,
        "perplexity": ours.perplexity,
        "tokens": tokens,
        "seconds": ours.seconds,
        "reader": args.reader,
    }
    if args.reader is None:
        return ours, row
    try:
        theirs = read_elsewhere(args.reader, model, windows, python=args.python, dtype=args.reader_dtype)
    except RuntimeError as error:
        return ours, {**row, "cannot": str(error).strip().splitlines()[-1]}
    apart, spread = ours.beside(theirs)
    return ours, {
        **row,
        "reader_perplexity": theirs.perplexity,
        "over_reader_percent": apart,
        "its_error_percent": spread,
    }


def _line(row: Mapping[str, Any]) -> str:
    text = f"{row['model']}: {row['perplexity']:.4f} ({row['tokens']} tokens, {row['seconds']:.0f} s)"
    text += f"; {row['over_first_percent']:+.3f}% +- {row['standard_error_percent']:.3f} beside the first"
    if row["reader"] is None:
        return text
    if "cannot" in row:
        return f"{text}; {row['reader']} cannot: {row['cannot']}"
    text += f"; {row['reader']} {row['reader_perplexity']:.4f}"
    return f"{text}, {row['over_reader_percent']:+.3f}% +- {row['its_error_percent']:.3f} beside it"


if __name__ == "__main__":
    sys.exit(main())
