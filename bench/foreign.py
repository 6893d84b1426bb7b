"""What is left of Aril's speed while another program keeps one core busy: `python -m aril.bench.foreign [MODEL]`.

The same load alone and beside a program that only counts, in turn, several rounds. Ratios are of the same round.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..core.platform import usable_cores
from .race import Case, Contender, run_lap
from .worker import Worker

COUNTING = "while True: pass"


def main() -> int:
    """Print tokens/s of each round, and the ratio."""
    args = _parser().parse_args()
    flags = {
        "dtype": "bfloat16",
        "threads": args.threads,
        "device": "cpu",
        "max_model_len": 512,
        "kv_cache_memory": "1GiB",
    }
    with Worker.ours("aril_worker", {"model": args.model, "adapters": {}, "flags": flags}) as worker:
        aril = Contender("aril", worker)
        for streams in args.streams:
            case = Case(streams, 0, 128, args.output_len)
            run_lap(aril, case, -1, 256)  # other prompts than those of the rounds, which would be remembered
            kept = [_beside(aril, case, at) for at in range(args.rounds)]
            print(f"{case}: {statistics.median(kept):.2f} of its speed alone ({min(kept):.2f} to {max(kept):.2f})")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m aril.bench.foreign", description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    return parser


def _beside(aril: Contender, case: Case, at: int) -> float:
    """Tokens/s beside the other program, in those alone."""
    alone, _ = run_lap(aril, case, 2 * at, 256)
    with _a_busy_core():
        beside, _ = run_lap(aril, case, 2 * at + 1, 256)
    print(
        f"round {at}: {case}: alone {alone.tokens_per_s:.1f} tokens/s, beside {beside.tokens_per_s:.1f}",
        file=sys.stderr,
    )
    return beside.tokens_per_s / alone.tokens_per_s


@contextmanager
def _a_busy_core() -> Iterator[None]:
    """A program in a session of its own, as Linux shares the cores between sessions first."""
    process = subprocess.Popen([sys.executable, "-c", COUNTING], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
