"""Load on a running server: requests at a rate (open loop) or a number of busy clients (closed loop), and its numbers.

Prompts are random token ids and outputs have a fixed length, so that runs compare. Works on any OpenAI-compatible
server that has vLLM's /tokenize and `ignore_eos`. Times of an open loop count from when a request was due, not from
when it could be sent, so a server that falls behind cannot hide it.
"""

from __future__ import annotations

import asyncio
import json
import random
import string
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import ArilError, InvalidRequest, Unavailable
from .client import Client, events

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of the server. Exactly one of `rate` and `concurrency`, and of `num_requests` and `duration`."""

    models: Sequence[str] = ()  # empty: the base; several are mixed
    rate: float | None = None  # requests per second, at Poisson arrivals
    concurrency: int | None = None  # clients that each wait for an answer before they ask again
    num_requests: int | None = None
    duration: float | None = None  # seconds during which requests begin
    input_len: int = 128
    output_len: int = 128
    zipf: float = 0.0  # exponent; 0 mixes uniformly
    hang_up_share: float = 0.0  # of the clients, this share leaves in the middle of its answer
    warmup: int | None = None  # requests before the clock starts; by default one for each model
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.concurrency is None):
            raise InvalidRequest("give one of --rate (open loop) and --concurrency (closed loop)")
        if (self.num_requests is None) == (self.duration is None):
            raise InvalidRequest("give one of --num-requests and --duration")
        for name in ("rate", "concurrency", "num_requests", "duration", "input_len", "output_len"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidRequest(f"--{name.replace('_', '-')} {value}: expected more than 0", param=name)


@dataclass(slots=True)
class Tally:
    """What happened; times in seconds."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)
    num_output: int = 0
    hung_up: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def report(self, load: Load, seconds: float) -> dict[str, Any]:
        """The numbers, by the names that the JSON file has."""
        done = len(self.e2e)
        return {
            "output_tokens_per_s": self.num_output / seconds,
            "requests_per_s": done / seconds,
            "errors": self.errors.total(),
            "completed": done,
            "hung_up": self.hung_up,
            "duration_s": seconds,
            "output_tokens": self.num_output,
            "input_len": load.input_len,
            "output_len": load.output_len,
            "models": len(load.models),
            "rate": load.rate,
            "concurrency": load.concurrency,
            "ttft_ms": _percentiles(self.ttft),
            "itl_ms": _percentiles(self.itl),
            "e2e_ms": _percentiles(self.e2e),
            "error_messages": dict(self.errors.most_common(5)),
        }


async def run(client: Client, load: Load) -> dict[str, Any]:
    """Warm up, put `load` on the server, and return the report."""
    names = load.models or [(await client.call("GET", "/v1/models"))["data"][0]["id"]]
    bench = _Bench(client, load, list(names), await _token_pool(client, names[0]))
    await bench.warm_up()
    tally = Tally()
    begin = time.perf_counter()
    await (bench.open_loop(tally) if load.rate is not None else bench.closed_loop(tally))
    report = tally.report(load, time.perf_counter() - begin)
    return {**report, "server_after": await _ready(client)}


async def adapters(client: Client) -> list[str]:
    """The names of all active adapters."""
    return [m["id"] for m in (await client.call("GET", "/v1/models"))["data"] if m.get("parent")]


class _Bench:
    """One load in progress; owns the random stream, so that the same seed asks the same things in the same order."""

    def __init__(self, client: Client, load: Load, names: list[str], pool: list[int]) -> None:
        self._client, self._load, self._names, self._pool = client, load, names, pool
        self._random = random.Random(load.seed)
        self._weights = [1 / (place**load.zipf) for place in range(1, len(names) + 1)]

    async def warm_up(self) -> None:
        """Every model once, unless told otherwise; a server that cannot answer these ends the bench here."""
        tally, count = Tally(), len(self._names) if self._load.warmup is None else self._load.warmup
        for at in range(count):
            await self._one(tally, {**self._body(), "model": self._names[at % len(self._names)]}, time.perf_counter())
        if tally.errors:
            raise Unavailable(f"warm-up failed: {next(iter(tally.errors))}")

    async def closed_loop(self, tally: Tally) -> None:
        """Clients that each ask again as soon as they are answered."""
        turns = self._turns()

        async def busy() -> None:
            for _ in turns:
                await self._one(tally, self._body(), time.perf_counter())

        await asyncio.gather(*(busy() for _ in range(self._load.concurrency or 0)))

    async def open_loop(self, tally: Tally) -> None:
        """Requests that come whether or not earlier ones are done."""
        due, tasks = time.perf_counter(), []
        for _ in self._turns():
            due += self._random.expovariate(self._load.rate or 0)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self._one(tally, self._body(), due)))
        await asyncio.gather(*tasks)

    def _turns(self) -> Iterator[int]:
        """One turn for each request to begin; shared by all clients."""
        end = time.perf_counter() + (self._load.duration or float("inf"))
        at = 0
        while at != self._load.num_requests and time.perf_counter() < end:
            yield at
            at += 1

    def _body(self) -> dict[str, Any]:
        return {
            "model": self._random.choices(self._names, self._weights)[0],
            "prompt": self._random.choices(self._pool, k=self._load.input_len),
            "max_tokens": self._load.output_len,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _one(self, tally: Tally, body: Mapping[str, Any], due: float) -> None:
        leaves_after = self._patience()
        try:
            async with aclosing(self._client.stream("POST", "/v1/completions", body)) as parts:
                await _measure(tally, events(parts), due, leaves_after)
        except ArilError as error:
            tally.errors[error.message] += 1

    def _patience(self) -> int | None:
        """After how many events this client hangs up; None: it stays."""
        if self._random.random() >= self._load.hang_up_share:
            return None
        return self._random.randint(1, max(1, self._load.output_len // 2))


async def _measure(tally: Tally, found: Any, due: float, leaves_after: int | None) -> None:
    """Take the times of one answer. Only the last events are decoded: the others are counted."""
    seen, last, usage = 0, due, None
    async for payload in found:
        now = time.perf_counter()
        if b'"choices":[]' in payload or payload.startswith(b'{"error"'):
            usage = _usage(payload)
            continue
        (tally.itl if seen else tally.ttft).append(now - last)
        seen, last = seen + 1, now
        if seen == leaves_after:
            tally.hung_up += 1
            return
    if usage is None:
        raise Unavailable("a stream ended before its usage")
    tally.num_output += usage
    tally.e2e.append(last - due)


def _usage(payload: bytes) -> int:
    fields = json.loads(payload)
    if "error" in fields:
        raise Unavailable(f"in a stream: {fields['error'].get('message')}")
    return int(fields["usage"]["completion_tokens"])


async def _token_pool(client: Client, model: str) -> list[int]:
    """Ids of ordinary tokens, whatever the vocabulary is."""
    text = " ".join(a + b for a in string.ascii_letters for b in string.ascii_lowercase)
    found = await client.call("POST", "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
    return sorted(set(found["tokens"]))


async def _ready(client: Client) -> Any:
    """What the server says of itself afterwards; None where it has no /ready."""
    try:
        return await client.call("GET", "/ready")
    except ArilError:
        return None


def _percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """Milliseconds at each percentile (nearest rank), and the mean; None when nothing was measured."""
    ordered = sorted(seconds)
    shown = {f"p{p}": 1e3 * ordered[-(-len(ordered) * p // 100) - 1] if ordered else None for p in PERCENTILES}
    return {**shown, "mean": 1e3 * sum(ordered) / len(ordered) if ordered else None}
