"""The bench that settles it: Aril and its peers on the same base and the same load, in turn, on this machine.

    python -m aril.bench.peers setup [NAME ...]         makes the environments and converts the base (long, once)
    python -m aril.bench.peers run --rounds 5 --json out.json
    python -m aril.bench.peers run --cases one mixed --peers vllm

The base is the demo base: as bfloat16 in a Hugging Face folder that transformers writes once, and as its own .gguf file
for int4. Each engine lives in a process of its own, loaded once for a stage, and all run the same cases in turn, every
other round in reverse order. Random token ids without a common beginning, greedy, past any end of text. Ratios are of
the same round: median, least, most. A contender that has used up its patience in a case sits out the later rounds.
Every setting is in the peer's file and, as it was passed, in the JSON report. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...core.platform import usable_cores
from ...core.registry import Registry
from .. import ceiling
from ..formats import processor
from ..loading import weight_files
from ..race import Rules
from . import _environment as environment
from ._base import adapters_in, base_of, kv_bytes_of_token
from ._claims import Facts, claims
from ._judge import Judge
from ._peer import ARIL, Base, Peer, Stage
from ._report import as_json, start_table, table
from ._session import Entry, Found, run_race, run_starts, say
from ._stages import CASES, START, sized, stages

PEERS: Registry[Peer] = Registry("peer", package=__package__ or "aril.bench.peers")
JUDGE = "transformers"  # whose environment the judge runs in


def main() -> int:
    """Set up, or run."""
    args = _parser().parse_args()
    return _set_up(args.names or PEERS.names()) if args.what == "setup" else _run(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="what", required=True)
    setup = kinds.add_parser("setup", help="make environments")
    setup.add_argument("names", nargs="*", metavar="NAME", help=f"peers: {', '.join(PEERS.names())} (all)")
    run = kinds.add_parser("run", help="measure")
    run.add_argument("--peers", nargs="*", default=PEERS.names(), choices=PEERS.names(), help="beside Aril (all)")
    run.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), help="what to run (all)")
    run.add_argument("--rounds", type=int, default=5)
    run.add_argument("--model", help="a folder in bfloat16 instead of the demo base; without int4 then")
    run.add_argument("--threads", type=int, default=usable_cores())
    run.add_argument("--input-len", type=int, default=128)
    run.add_argument("--output-len", type=int, default=128)
    run.add_argument("--kv", type=int, default=2 << 30, metavar="BYTES", help="of KV cache in each engine (2 GiB)")
    run.add_argument("--patience", type=float, default=100.0, help="seconds in one case for each contender (100)")
    run.add_argument("--unjudged", action="store_true", help="do not compare what was said with the reference")
    run.add_argument("--json", type=Path)
    return parser


def _set_up(names: Sequence[str]) -> int:
    """Environments one after the other; 1 when one could not be made."""
    failed, base = 0, _demo()
    for name in names:
        try:
            _ready(name, base)
            say(f"{name}: ready")
        except RuntimeError as error:
            failed = 1
            say(f"{name}: {str(error).strip().splitlines()[-1]}")
    return failed


def _ready(name: str, base: Base) -> Peer:
    """The peer, its environment made and `base` converted. Raises RuntimeError when that fails."""
    peer, home = PEERS[name], environment.folder_of(name)
    if not environment.is_made(peer, home):
        say(f"{name}: making {home}")
        environment.make(peer, home)
    peer.prepare(base, home)
    return peer


def _demo() -> Base:
    """The demo base in both forms, without adapters; the judge's environment is made first, as it converts."""
    home = environment.folder_of(JUDGE)
    if not environment.is_made(PEERS[JUDGE], home):
        say(f"{JUDGE}: making {home}")
        environment.make(PEERS[JUDGE], home)
    return base_of(environment.python_of(PEERS[JUDGE], home))


def _run(args: argparse.Namespace) -> int:
    base = base_of(Path(sys.executable), args.model) if args.model else _demo()
    ready = {}
    for name in dict.fromkeys((ARIL, *args.peers)):
        try:
            ready[name] = _ready(name, base)
        except RuntimeError as error:
            say(f"{name} is left out: {str(error).strip().splitlines()[-1]}")
    torch.set_num_threads(args.threads)
    machine = ceiling.measure(torch.device("cpu"))
    print(f"{processor()}: {machine}", flush=True)
    rules = Rules(args.rounds, base.vocab_size, args.patience)
    found: dict[str, Found] = {}
    settings: dict[str, Any] = {}
    weights = sum(file.stat().st_size for file in weight_files(base.folder))
    for stage in stages(args.cases, args.threads, args.input_len, args.output_len):
        if args.model and stage.weights != "bf16":
            continue
        found[stage.name], settings[stage.name] = _stage(stage, base, ready, rules, args)
        shown = start_table(found[stage.name], weights, args.kv) if stage.name == START else table(found[stage.name])
        print(f"\n{stage.name}\n{shown}", flush=True)
    size = partial(sized, input_len=args.input_len, output_len=args.output_len)
    reached = list(claims(Facts(found, size, machine.num_bytes, weights, args.kv)))
    print("", *reached, sep="\n")
    if args.json is not None:
        asked = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        report = {
            "machine": f"{processor()}, {platform.platform()}: {machine}",
            "asked": asked,
            "settings": settings,
            "stages": [as_json(each) for each in found.values()],
            "claims": [str(claim) for claim in reached],
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def _stage(
    stage: Stage, base: Base, ready: dict[str, Peer], rules: Rules, args: argparse.Namespace
) -> tuple[Found, list[dict[str, Any]]]:
    """What was found, and with what settings."""
    with tempfile.TemporaryDirectory() as folder:
        given = adapters_in(Path(folder), base, stage.shape, args.kv)
        entries = [entry for name, peer in ready.items() for entry in _entries(name, peer, stage, given)]
        settings = [asdict(entry.engine) for entry in entries]
        if stage.name == START:
            return run_starts(stage, entries, rules, kv_bytes_of_token(base)), settings
        judge = partial(Judge, _judging_python(), stage, given, args.threads)
        return run_race(stage, entries, rules, None if args.unjudged else judge), settings


def _entries(name: str, peer: Peer, stage: Stage, base: Base) -> list[Entry]:
    home = environment.folder_of(name)
    python = environment.python_of(peer, home) if peer.pins else None
    return [Entry(engine, python) for engine in peer.engines(stage, base, home)]


def _judging_python() -> Path:
    """The judge's own environment where it is made, else this one."""
    peer, home = PEERS[JUDGE], environment.folder_of(JUDGE)
    return environment.python_of(peer, home) if environment.is_made(peer, home) else Path(sys.executable)


if __name__ == "__main__":
    sys.exit(main())
