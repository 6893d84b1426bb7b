"""How long a start takes: from the process to an answer of /ready, and to the first token; and what memory it then has.

    python -m aril.bench.start --rounds 5

The first start of a state folder, which registers and migrates, is left out, as is what a cache gains by it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from .process import ServerProcess


def main() -> int:
    """The median of each, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m aril.bench.start", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="what to serve (demo)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("options", nargs="*", help="after --: further flags of aril serve")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aril-start-") as folder:
        server = ServerProcess(args.model, Path(folder), *args.options)
        rounds = [_round(server) for _ in range(args.rounds + 1)][1:]
    ready, token, memory = (statistics.median(column) for column in zip(*rounds, strict=True))
    found = {"model": args.model, "ready_s": ready, "first_token_s": token, "resident_mb": memory, "rounds": rounds}
    print(json.dumps(found, indent=2))
    return 0 if ready <= 3 else 1


def _round(server: ServerProcess) -> tuple[float, float, float]:
    """Seconds to ready, seconds to the first token, megabytes resident then."""
    began = time.monotonic()
    ready = server.start()
    try:
        with server.client() as http:
            base = http.get("/v1/models").json()["data"][0]["id"]
            body = {"model": base, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
            http.post("/v1/completions", json=body).raise_for_status()
            return round(ready, 3), round(time.monotonic() - began, 3), server.resident() / 1e6
    finally:
        server.kill()


if __name__ == "__main__":
    sys.exit(main())
