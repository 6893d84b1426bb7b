"""Two measurements of a whole server, each in a process of its own: its speed with and without adapters, and its calm
under many clients of whom a third hang up.

    python -m aril.bench.served speed --json speed.json
    python -m aril.bench.served load --json load.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from .client import Client
from .process import ServerProcess
from .random_adapters import make, targets_of
from .serve import Load, run

RANK = 16
SETTLE_SECONDS = 10.0  # for the last aborts to reach the engine


def main() -> int:
    """Run one of the two; 1 when what must hold did not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "load"))
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--adapters", type=int, help="random adapters of rank 16 on all linears (speed 8, load 16)")
    parser.add_argument("--clients", type=int, help="concurrent clients (speed 16, load 200)")
    parser.add_argument("--rounds", type=int, default=3, help="speed: pairs of runs, with and without adapters in turn")
    parser.add_argument("--seconds", type=float, default=120.0, help="load: how long requests begin")
    parser.add_argument("--json", type=Path)
    parser.add_argument("options", nargs="*", help="after --: further flags of aril serve")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = speed(args, Path(folder)) if args.what == "speed" else load(args, Path(folder))
    text = json.dumps(found, indent=2)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n")
    return 0 if found["holds"] else 1


def speed(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Tokens per second of closed-loop clients over all adapters, and over the base alone, in turn."""
    server, names, ready = _server_with_adapters(args, folder, args.adapters or 8)
    clients = args.clients or 16
    plain = Load(concurrency=clients, num_requests=4 * clients)
    mixed = replace(plain, models=names)
    client = server.plain_client()
    pairs = []
    for seed in range(args.rounds):
        pairs.append([_tokens_per_s(client, replace(load, seed=seed)) for load in (mixed, plain)])
        print(f"adapters {pairs[-1][0]:.1f} tok/s, base {pairs[-1][1]:.1f} tok/s", file=sys.stderr, flush=True)
    server.kill()
    with_adapters, without = (statistics.median(column) for column in zip(*pairs, strict=True))
    share = statistics.median(a / b for a, b in pairs)
    return {
        "ready_s": ready,
        "adapters_tokens_per_s": with_adapters,
        "base_tokens_per_s": without,
        "share_of_base_speed": share,
        "rounds": pairs,
        "holds": with_adapters >= 150 and share >= 0.6 and ready <= 15,
    }


def load(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Many streaming clients, a third of them leaving midway: errors, and what is left in use at the end."""
    server, names, _ = _server_with_adapters(args, folder, args.adapters or 16)
    storm = Load(
        models=names, concurrency=args.clients or 200, duration=args.seconds, output_len=32, hang_up_share=1 / 3
    )
    report = asyncio.run(run(server.plain_client(), storm))
    with server.client() as http:
        left = _settled(http)
    server.kill()
    clean = left["running"] == 0 and left["waiting"] == 0 and left["free_blocks"] == left["total_blocks"]
    return {**report, "after": left, "holds": report["errors"] == 0 and clean and left["adapter_slots_busy"] == 0}


def _server_with_adapters(args: argparse.Namespace, folder: Path, count: int) -> tuple[ServerProcess, list[str], float]:
    """A server that has `count` random adapters, and the seconds of its second start."""
    targets = targets_of(args.model)
    server = ServerProcess(args.model, folder, "--dtype", args.dtype, *args.options)
    server.start()
    names = [f"random-{at}" for at in range(count)]
    with server.client() as http:
        for at, name in enumerate(names):
            source = make(folder / name, targets.modules, rank=RANK, seed=at)
            files = [("files", (path.name, path.read_bytes())) for path in sorted(source.iterdir())]
            http.post("/admin/v1/adapters", data={"name": name}, files=files).raise_for_status()
    server.kill()
    return server, names, server.start()


def _tokens_per_s(client: Client, load: Load) -> float:
    report = asyncio.run(run(client, load))
    if report["errors"]:
        raise RuntimeError(f"{report['errors']} requests failed: {report['error_messages']}")
    return float(report["output_tokens_per_s"])


def _settled(http: httpx.Client) -> dict[str, Any]:
    """What the server says of itself once nothing runs, or when it has had time enough."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        found: dict[str, Any] = http.get("/ready").json()
        if (found["running"] == 0 and found["waiting"] == 0) or time.monotonic() > end:
            return found
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
