"""The restart trial: `kill -9` in the middle of every kind of change, then look whether anything contradicts itself.

    python -m aril.bench.restart --trials 100 --json restart.json
    python -m aril.bench.restart --trials 100 --database-url postgresql://...

Each trial lets `aril serve` take one kind of change (KINDS in changes.py, at random) as fast as it answers, kills it
at a random moment, starts it again and compares (checks.py): everything acknowledged must be there, and registry,
store, served models, keys, usage and audit must agree. Of the one change that was under way, either outcome is right.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from ..process import ServerProcess
from .changes import GATE_SECONDS, KINDS, Changes, Kind
from .checks import all_views, contradictions, waiting
from .known import Known

EXAMPLE = Path(__file__).parents[2] / "examples" / "adapters" / "pirate"


@dataclass(slots=True)
class Trial:
    """One kill, and what was found after it."""

    kind: str
    killed_after: float  # seconds after the first acknowledgement
    num_acknowledged: int = 0
    under_way: str = ""
    start_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def run(server: ServerProcess, adapter: Path, *, trials: int, seed: int, minutes: float = math.inf) -> list[Trial]:
    """Run all trials on one server, or as many as begin within `minutes`."""
    deadline = time.monotonic() + 60 * minutes
    rng = random.Random(seed)
    changes = Changes(adapter, Known(), rng)
    done: list[Trial] = []
    try:
        server.start()
        with server.client() as client:
            changes.begin(client)
        for at in itertools.takewhile(lambda _: time.monotonic() < deadline, range(trials)):
            kind = rng.choice(list(KINDS))
            trial = Trial(kind, round(rng.uniform(0, KINDS[kind].within), 3))
            _kill_and_look(server, changes, trial, rng)
            _show(at, trial)
            done.append(trial)
        with server.client() as client:
            done[-1].problems += [f"{name} was never decided" for name in _settle(client, GATE_SECONDS)]
    finally:
        server.kill()
    return done


def _kill_and_look(server: ServerProcess, changes: Changes, trial: Trial, rng: random.Random) -> None:
    known = changes.known
    before = known.num_acknowledged
    killed_at = _kill_midway(server, changes, KINDS[trial.kind], trial)
    trial.num_acknowledged = known.num_acknowledged - before + len(known.ended)
    trial.under_way = known.under_way.subject if known.under_way else ""
    trial.start_seconds = round(server.start(), 2)
    with server.client() as client:
        _settle(client, 1.0)  # what another server may have is left for its lease, and for a later trial to see
        trial.problems += contradictions(client, server.store, known, rng, killed_at)
        known.adopt(all_views(client))


def _kill_midway(server: ServerProcess, changes: Changes, kind: Kind, trial: Trial) -> float:
    """Change until the kill; returns when that was."""
    begun = threading.Event()

    def work() -> None:
        try:
            with server.client() as client:
                while True:
                    kind.act(changes, client)
                    begun.set()
        except httpx.TransportError:
            pass
        except Exception as error:
            trial.problems.append(repr(error))
        begun.set()

    workers = [threading.Thread(target=work) for _ in range(kind.num_threads)]
    for worker in workers:
        worker.start()
    begun.wait()
    time.sleep(trial.killed_after)
    killed_at = time.monotonic()
    server.kill()
    for worker in workers:
        worker.join()
    return killed_at


def _settle(client: httpx.Client, seconds: float) -> list[str]:
    """Wait until the gate has decided about everything; returns what is left after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := waiting(client)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _show(at: int, trial: Trial) -> None:
    verdict = "; ".join(trial.problems) or "agrees"
    print(
        f"{at + 1:>5}  {trial.kind:<6}  {trial.killed_after:>8.3f}  {trial.num_acknowledged:>12}  "
        f"{trial.under_way or '-':<32}  {trial.start_seconds:>7.2f}  {verdict}",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials of the command line; 1 when anything was lost or contradicts itself."""
    parser = argparse.ArgumentParser(prog="python -m aril.bench.restart", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="what to serve (demo)")
    parser.add_argument("--adapter", type=Path, default=EXAMPLE, help="a PEFT folder that fits it (the example pirate)")
    parser.add_argument("--database-url", help="an empty database (a new SQLite file)")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no trial after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there")
    args = parser.parse_args(argv)
    flags = ["--no-examples", *(["--database-url", args.database_url] if args.database_url else [])]
    print(f"trial  {'kind':<6}  killed/s  acknowledged  {'under way':<32}  start/s  found")
    with tempfile.TemporaryDirectory(prefix="aril-restart-") as folder:
        server = ServerProcess(args.model, Path(folder), *flags)
        done = run(server, args.adapter, trials=args.trials, seed=args.seed, minutes=args.minutes)
    failed, kinds = [trial for trial in done if trial.problems], Counter(trial.kind for trial in done)
    print(f"{len(done) - len(failed)} of {len(done)} kills left everything in agreement ({dict(kinds)})")
    if args.json is not None:
        args.json.write_text(
            json.dumps({"seed": args.seed, "trials": [asdict(trial) for trial in done]}, indent=2) + "\n"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
