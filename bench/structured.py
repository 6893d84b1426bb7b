"""What structured output costs, on one engine: rows that are held to a constraint beside rows that are not, and rows
that are free while strangers send constraints that take all the time there is.

    python -m aril.bench.structured --json structured.json

In each round every leg runs once, every other round in reverse order; a share is a leg's tokens/s over the free rows'
of the same round, and what is told is the median over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from ..core.errors import ArilError
from ..engine.aio import AsyncEngine
from ..engine.config import EngineConfig
from ..engine.engine import Engine
from ..engine.grammar.asked import StructuredOutputs
from ..engine.params import SamplingParams

LEAST_SHARE = 0.9  # of the free rows' speed
FREE = "free"
BESIDE = "free, beside hostile constraints"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "likes": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "kind": {"enum": ["friend", "colleague", "stranger"]},
    },
    "required": ["name", "age", "likes", "kind"],
    "additionalProperties": False,
}
# None of these can end within a row's tokens, so that all legs draw equally many.
LEGS: Mapping[str, Mapping[str, Any] | None] = {
    FREE: None,
    "json schema": {"json": {"type": "array", "items": PERSON, "minItems": 1000}},
    "regex": {"regex": r"([0-9]{4}-[0-9]{2}-[0-9]{2} (INFO|WARN|ERROR) [a-z_]{1,20}=([0-9]{1,6}|[a-z ]+)\n){99}"},
    "grammar": {"grammar": 'start: line+\nline: /[a-z]{1,8}/ " = " sum ";\\n"\nsum: /[0-9]{1,6}/ (" + " sum)?'},
    BESIDE: None,
}


def main() -> int:
    """Run it; 1 when a constraint costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96, help="of each row")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--grammar-backend", default="llguidance")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = asyncio.run(measure(args))
    text = json.dumps(found, indent=2)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n")
    return 0 if found["holds"] else 1


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All rounds on one engine."""
    config = EngineConfig(model=args.model, dtype=args.dtype, grammar_backend=args.grammar_backend)
    engine = AsyncEngine(await asyncio.to_thread(Engine, config))
    legs = [leg for leg in LEGS if leg != "grammar" or args.grammar_backend == "llguidance"]
    rounds: list[dict[str, float]] = []
    try:
        began = time.perf_counter()
        await lap(engine, args, "json schema", at=-1)
        first = time.perf_counter() - began
        for leg in legs[:-1]:
            await lap(engine, args, leg, at=-1)
        for at in range(args.rounds):
            speeds = {leg: await lap(engine, args, leg, at) for leg in legs[:: -1 if at % 2 else 1]}
            rounds.append(speeds)
            print("  ".join(f"{leg} {speeds[leg]:.0f}" for leg in legs), file=sys.stderr, flush=True)
    finally:
        await engine.close()
    shares = {leg: statistics.median(speeds[leg] / speeds[FREE] for speeds in rounds) for leg in legs[1:]}
    return {
        "tokens_per_s": {leg: statistics.median(speeds[leg] for speeds in rounds) for leg in legs},
        "share_of_free": shares,
        "first_lap_s": first,
        "rounds": rounds,
        "holds": min(shares.values()) >= LEAST_SHARE,
    }


async def lap(engine: AsyncEngine, args: argparse.Namespace, leg: str, at: int) -> float:
    """Output tokens/s of all rows at once; the prompts are those of the round."""
    numbers = random.Random(at)
    prompts = [numbers.choices(range(100, 10_000), k=32) for _ in range(args.streams)]
    params = SamplingParams(
        temperature=args.temperature,
        max_tokens=args.tokens,
        ignore_eos=True,
        seed=at + 1,
        structured_outputs=LEGS[leg],  # type: ignore[arg-type]  # a record is made of it
    )
    async with beside(engine, hostile=leg == BESIDE):
        began = time.perf_counter()
        rows = (count(engine, f"{leg} {at} {row}", prompt, params) for row, prompt in enumerate(prompts))
        total = sum(await asyncio.gather(*rows))
        seconds = time.perf_counter() - began
    if total != args.streams * args.tokens:
        raise RuntimeError(f"{leg}: {total} tokens came, not {args.streams} times {args.tokens}")
    return total / seconds


async def count(engine: AsyncEngine, name: str, prompt: list[int], params: SamplingParams) -> int:
    """Tokens of one row."""
    return sum([len(chunk.token_ids) async for chunk in engine.generate(name, prompt, params)])


@asynccontextmanager
async def beside(engine: AsyncEngine, *, hostile: bool) -> AsyncIterator[None]:
    """Somebody who, one after another, sends constraints that use up all the time that they get."""
    task = asyncio.create_task(_send_hostile(engine)) if hostile else None
    yield
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _send_hostile(engine: AsyncEngine) -> None:
    while True:
        name = random.random()  # no two are alike, so that none is remembered
        pattern = " & ".join(f"/.*a.{{{at}}}b.*/" for at in range(3, 40))
        outputs = StructuredOutputs(grammar=f'start: A | "{name}"\nA: {pattern}')
        with suppress(ArilError):
            await count(engine, f"hostile {name}", [100], SamplingParams(structured_outputs=outputs))


if __name__ == "__main__":
    sys.exit(main())
