"""What one heavy request costs those who stream: the longest time between two tokens of many short streams, alone and
while a stranger sends what is much work to read, to check or to answer.

    python -m aril.bench.heavy --json heavy.json

Each request is sent once a round; what is told of it is the median over the rounds. What the engine computes for it is
in the numbers too; where it is refused there is nothing of that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import Unavailable
from .client import Client, events
from .process import ServerProcess

ALONE = "alone"
QUIET_SECONDS = 2.0  # of the leg without a heavy request
FULL = 15 << 20  # bytes of a body that is nearly as large as one may be
SCHEMA = {"type": "object", "properties": {f"field{at}": {"type": "string"} for at in range(20)}}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Served:
    """The server that is asked."""

    client: Client
    model: str
    context: int


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of each stream; as one ends the next begins")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=sorted(HEAVY), default=list(HEAVY), help="heavy requests to send")
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
    return 0


async def measure(client: Client, args: argparse.Namespace) -> Json:
    """All rounds, with the streams going on through each."""
    model = (await client.call("GET", "/v1/models"))["data"][0]
    served = Served(client, model["id"], model["max_model_len"])
    requests = {name: HEAVY[name](served) for name in args.only}
    rounds: list[dict[str, float]] = []
    for _ in range(args.rounds):
        async with streaming(served, args.streams, args.tokens) as gaps:
            found = {ALONE: await gaps.longest(asyncio.sleep(QUIET_SECONDS))}
            for name, (method, path, body) in requests.items():
                found[name] = await gaps.longest(_sent(client, method, path, body))
        rounds.append(found)
        print("  ".join(f"{name} {gap * 1000:.0f} ms" for name, gap in found.items()), file=sys.stderr, flush=True)
    longest = {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
    return {"streams": args.streams, "longest_gap_s": longest, "rounds": rounds}


@dataclass(slots=True)
class Gaps:
    """The time between two events of a stream, over all streams."""

    num_streams: int
    seconds: list[float] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)  # set by each

    def take(self, seconds: float) -> None:
        """One more."""
        self.seconds.append(seconds)
        self.news.set()

    async def longest(self, work: Awaitable[object]) -> float:
        """The longest of those that ended while `work` was done, or soon after it."""
        before = len(self.seconds)
        await work
        await self.more(3 * self.num_streams)
        return max(self.seconds[before:])

    async def more(self, number: int) -> None:
        """Returns when so many have come."""
        enough = len(self.seconds) + number
        while len(self.seconds) < enough:
            self.news.clear()
            await self.news.wait()


@asynccontextmanager
async def streaming(served: Served, number: int, num_tokens: int) -> AsyncIterator[Gaps]:
    """So many streams at a time, each followed by the next; all have begun, and hang up at the end."""
    gaps = Gaps(number)
    tasks = [asyncio.create_task(_stream(served, num_tokens, row, gaps)) for row in range(number)]
    begun = asyncio.create_task(gaps.more(2 * number))
    try:
        await asyncio.wait({begun, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()  # which raises why it ended
        yield gaps
    finally:
        begun.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stream(served: Served, num_tokens: int, row: int, gaps: Gaps) -> None:
    body = {"model": served.model, "prompt": [100 + row, *range(110, 120)], "max_tokens": num_tokens, "stream": True}
    while True:
        last = None
        async with aclosing(served.client.stream("POST", "/v1/completions", {**body, "ignore_eos": True})) as parts:
            async for _ in events(parts):
                now = time.perf_counter()
                if last is not None:
                    gaps.take(now - last)
                last = now


async def _sent(client: Client, method: str, path: str, body: bytes) -> None:
    """Send it, and read whatever is answered: many are to be refused."""
    with suppress(Unavailable):
        async with aclosing(client.stream_raw(method, path, body)) as parts:
            async for _ in parts:
                pass


def _ids(served: Served) -> Json:
    """Token ids that fill a body: more than any context holds."""
    return {"prompt": [12345] * (FULL // 7)}


def _values(served: Served) -> Json:
    """A field that nobody knows, full of small things."""
    return {"prompt": "a", "max_tokens": 1, "unknown": [[]] * (FULL // 4)}


def _text(served: Served) -> Json:
    return {"prompt": "words and " * (FULL // 10)}


def _messages(served: Served) -> Json:
    return {"messages": [{"role": "user", "content": "again and again"}] * 65_000}


def _tools(served: Served) -> Json:
    tools = [{"type": "function", "function": {"name": f"tool{at}", "parameters": SCHEMA}} for at in range(512)]
    return {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "tool_choice": "required", "tools": tools}


def _enum(served: Served) -> Json:
    schema = {"type": "object", "properties": {"a": {"enum": [f"value {at}" for at in range(20_000)]}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "response_format": form}


def _biases(served: Served) -> Json:
    return {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "stop_token_ids": [7] * 1_000_000}


def _scores(served: Served) -> Json:
    return {"prompt": [12] * (served.context - 1), "max_tokens": 1, "prompt_logprobs": 20}


def _post(path: str, fields: Callable[[Served], Json]) -> Callable[[Served], tuple[str, str, bytes]]:
    return lambda served: ("POST", path, json.dumps({"model": served.model, **fields(served)}).encode())


HEAVY: Mapping[str, Callable[[Served], tuple[str, str, bytes]]] = {
    "document": lambda served: ("GET", "/openapi.json", b""),
    "ids": _post("/v1/completions", _ids),
    "values": _post("/v1/completions", _values),
    "text": _post("/v1/completions", _text),
    "messages": _post("/v1/chat/completions", _messages),
    "tools": _post("/v1/chat/completions", _tools),
    "enum": _post("/v1/chat/completions", _enum),
    "rules": _post("/v1/chat/completions", _biases),
    "scores": _post("/v1/completions", _scores),
}

if __name__ == "__main__":
    sys.exit(main())
