"""What idle connections cost those who stream: the time between tokens of many streams, alone and beside connections
that are kept open and say nothing.

    python -m aril.bench.idle --json idle.json

In each round both legs run once, every other round in reverse order; what is told is the median over the rounds of the
ratio of the 99th percentiles.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from .client import Client, events
from .process import ServerProcess

MOST_RATIO = 1.3
HELLO = b"GET /health HTTP/1.1\r\nHost: aril\r\n\r\n"
LEGS = ("alone", "beside idle")


def main() -> int:
    """Run it; 1 when idle connections cost more than they may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--idle", type=int, default=500, help="connections that are open and say nothing")
    parser.add_argument("--tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("options", nargs="*", help="after --: further flags of aril serve")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(args.model, Path(folder), "--access-log", "off", *args.options)
        server.start()
        try:
            found = asyncio.run(measure(server.plain_client(), args))
        finally:
            server.kill()
    text = json.dumps(found, indent=2)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n")
    return 0 if found["holds"] else 1


async def measure(client: Client, args: argparse.Namespace) -> dict[str, Any]:
    """All rounds."""
    model = (await client.call("GET", "/v1/models"))["data"][0]["id"]
    await lap(client, model, args, seed=-1)  # what is slow the first time is slow for neither leg
    rounds: list[dict[str, float]] = []
    for at in range(args.rounds):
        legs: dict[str, float] = {}
        for leg in LEGS[:: -1 if at % 2 else 1]:
            async with idle(client, args.idle if leg == LEGS[1] else 0):
                legs[leg] = await lap(client, model, args, seed=at)
        rounds.append(legs)
        print("  ".join(f"{leg} {legs[leg] * 1000:.1f} ms" for leg in LEGS), file=sys.stderr, flush=True)
    ratio = statistics.median(legs[LEGS[1]] / legs[LEGS[0]] for legs in rounds)
    return {
        "streams": args.streams,
        "idle": args.idle,
        "p99_s": {leg: statistics.median(legs[leg] for legs in rounds) for leg in LEGS},
        "ratio": ratio,
        "rounds": rounds,
        "holds": ratio <= MOST_RATIO,
    }


async def lap(client: Client, model: str, args: argparse.Namespace, seed: int) -> float:
    """The 99th percentile of the seconds between two events of a stream, over all streams at once."""
    gaps = await asyncio.gather(*(_gaps(client, model, args.tokens, seed, row) for row in range(args.streams)))
    return statistics.quantiles([gap for each in gaps for gap in each], n=100)[98]


async def _gaps(client: Client, model: str, num_tokens: int, seed: int, row: int) -> list[float]:
    body = {
        "model": model,
        "prompt": [100 + row, 101 + seed, *range(110, 124)],
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "seed": row,
        "stream": True,
    }
    times = []
    async with aclosing(client.stream("POST", "/v1/completions", body)) as parts:
        async for _ in events(parts):
            times.append(time.perf_counter())
    return [then - before for before, then in pairwise(times)]


@asynccontextmanager
async def idle(client: Client, number: int) -> AsyncIterator[None]:
    """Connections that have been answered once and wait. Raises RuntimeError when one was closed meanwhile."""
    opened = [await asyncio.open_connection(client.host, client.port) for _ in range(number)]
    for reader, writer in opened:
        writer.write(HELLO)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
    try:
        yield
        if any(reader.at_eof() for reader, _ in opened):
            raise RuntimeError("the server closed idle connections: start it with a longer --timeout-keep-alive")
    finally:
        for _, writer in opened:
            writer.close()


if __name__ == "__main__":
    sys.exit(main())
