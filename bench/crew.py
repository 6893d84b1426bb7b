"""What a second process that answers HTTP is worth: many streams against a server with one and one with two, in turn.

    python -m aril.bench.crew --json crew.json

In each round both legs run once, every other round in reverse order; what is told is the median over the rounds of the
ratios, two processes to one, and the share of the answers that the busier of the two gave.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from .process import ServerProcess
from .serve import Load, run

LEGS = ("1", "2")
ANSWERS = "aril_worker_answers_total{"
Leg = dict[str, float]


def main() -> int:
    """Run it; 0 always: what it tells is for people to weigh."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32, help="of each stream")
    parser.add_argument("--streams", type=int, default=128, help="of each leg")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("options", nargs="*", help="after --: further flags of aril serve")
    args = parser.parse_args()
    load = Load(concurrency=args.clients, num_requests=args.streams, input_len=16, output_len=args.tokens)
    with ExitStack() as stack:
        servers = {leg: _started(stack, args, leg) for leg in LEGS}
        found = measure(servers, load, args.rounds)
    text = json.dumps(found, indent=2)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n")
    return 0


def _started(stack: ExitStack, args: argparse.Namespace, count: str) -> ServerProcess:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    server = ServerProcess(args.model, folder, "--access-log", "off", "--api-server-count", count, *args.options)
    stack.callback(server.kill)
    server.start()
    return server


def measure(servers: dict[str, ServerProcess], load: Load, rounds: int) -> dict[str, Any]:
    """All rounds."""
    for server in servers.values():  # what is slow the first time is slow for neither leg
        _lap(server, replace(load, seed=-1))
    found: list[dict[str, Leg]] = []
    for at in range(rounds):
        legs = {leg: _lap(servers[leg], replace(load, seed=at)) for leg in LEGS[:: -1 if at % 2 else 1]}
        found.append(legs)
        told = (f"{leg}: {legs[leg]['tokens_per_s']:.0f} tok/s, p99 {legs[leg]['itl_p99_ms']:.0f} ms" for leg in LEGS)
        print("   ".join(told), file=sys.stderr, flush=True)
    one, two = LEGS
    ratios = {
        name: statistics.median(legs[two][name] / legs[one][name] for legs in found)
        for name in ("tokens_per_s", "itl_p99_ms")
    }
    busier = statistics.median(legs[two]["busier_share"] for legs in found)
    return {"ratio_two_to_one": ratios, "busier_share": busier, "rounds": found}


def _lap(server: ServerProcess, load: Load) -> Leg:
    before = _answers(server)
    report = asyncio.run(run(server.plain_client(), load))
    if report["errors"]:
        raise RuntimeError(f"{report['errors']} requests failed: {report['error_messages']}")
    given = [count - before.get(worker, 0) for worker, count in _answers(server).items()] or [1]
    return {
        "tokens_per_s": report["output_tokens_per_s"],
        "itl_p99_ms": report["itl_ms"]["p99"],
        "busier_share": max(given) / sum(given),
    }


def _answers(server: ServerProcess) -> dict[str, float]:
    """Of each process that only answers HTTP, by the labels in /metrics; a server of one has none."""
    with server.client() as http:
        lines = [line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if line.startswith(ANSWERS)]
    return {labels: float(count) for labels, count in lines}


if __name__ == "__main__":
    sys.exit(main())
