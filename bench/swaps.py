"""An alias that moves under load: every answer must come from a revision that it named while the request ran.

    python -m aril.bench.swaps --swaps 200 --clients 32 --json swaps.json

Two revisions of one adapter answer one long prompt differently. Clients ask through an alias that moves between them
all the time, and through another that divides callers between them. Held against every answer: the alias named its
revision at some moment of the request; its text is the one that this revision always gives, so that no cached prompt of
the other has gone into it; and who says the same `user` hears the same revision.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from .process import ServerProcess

ADMIN = "/admin/v1/adapters"
EXAMPLES = Path(__file__).parents[1] / "examples" / "adapters"
MOVING, DIVIDED = "prod", "canary"
NUM_PROMPT = 600  # tokens that all requests share
NUM_OUTPUT = 8
REVISIONS = (1, 2)


@dataclass(frozen=True, slots=True)
class Swap:
    """One move of the alias, and the time that its request took."""

    revision: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Heard:
    """One answer; `speaker` is the revision that it says it comes from."""

    alias: str
    user: str
    speaker: int
    text: str
    began: float
    ended: float


@dataclass(slots=True)
class Run:
    """All that happened."""

    right: dict[int, str]  # what each revision answers when nothing moves
    swaps: list[Swap] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Everything that must not be."""
        found = [*self.failures]
        if len(set(self.right.values())) < len(self.right):
            found.append("the revisions answer alike: nothing can be told from their answers")
        for answer in self.heard:
            if answer.alias == MOVING and not self._held(answer):
                found.append(f"{answer} came from a revision that the alias did not name")
            if answer.text != self.right[answer.speaker]:
                found.append(f"{answer} is not what its revision says")
        speakers: dict[str, set[int]] = defaultdict(set)
        for answer in self.heard:
            if answer.alias == DIVIDED:
                speakers[answer.user].add(answer.speaker)
        return found + [f"user {user} heard {sorted(each)}" for user, each in speakers.items() if len(each) > 1]

    def _held(self, answer: Heard) -> bool:
        ends = [swap.ended for swap in self.swaps[1:]] + [float("inf")]
        return any(
            swap.revision == answer.speaker and swap.began <= answer.ended and end >= answer.began
            for swap, end in zip(self.swaps, ends, strict=True)
        )


async def run(http: httpx.AsyncClient, name: str, *, swaps: int, clients: int, seconds: float = 0.0) -> Run:
    """Move `name@prod` so many times, and for so long at least, under so many clients. `name` has two revisions; `http`
    may do anything."""
    ended, found = asyncio.Event(), Run({})
    for revision in REVISIONS:
        found.right[revision] = (await _ask(http, f"{name}@{revision}", "nobody")).text
    await _move(http, name, DIVIDED, {"weights": {str(revision): 50 for revision in REVISIONS}})
    found.swaps.append(await _swap(http, name, REVISIONS[0]))
    askers = [asyncio.create_task(_keep_asking(http, name, f"user-{at}", found, ended)) for at in range(clients)]
    deadline = time.monotonic() + seconds
    while len(found.swaps) <= swaps or time.monotonic() < deadline:
        found.swaps.append(await _swap(http, name, REVISIONS[len(found.swaps) % len(REVISIONS)]))
    ended.set()
    await asyncio.gather(*askers)
    return found


async def _keep_asking(http: httpx.AsyncClient, name: str, user: str, found: Run, ended: asyncio.Event) -> None:
    asked = 0
    while not ended.is_set():
        alias = DIVIDED if asked % 3 == 2 else MOVING
        asked += 1
        try:
            found.heard.append(await _ask(http, f"{name}@{alias}", user))
        except (httpx.HTTPError, RuntimeError) as error:
            found.failures.append(f"{user}: {error!r}")


async def _ask(http: httpx.AsyncClient, model: str, user: str) -> Heard:
    prompt = [5 + at % 200 for at in range(NUM_PROMPT)]
    body = {"model": model, "prompt": prompt, "max_tokens": NUM_OUTPUT, "temperature": 0, "ignore_eos": True}
    began = time.monotonic()
    answer = await http.post("/v1/completions", json={**body, "user": user})
    ended = time.monotonic()
    if answer.status_code != 200:
        raise RuntimeError(f"{answer.status_code} {answer.text}")
    speaker = int(answer.headers["x-aril-adapter"].rpartition("@")[2])
    return Heard(model.rpartition("@")[2], user, speaker, answer.json()["choices"][0]["text"], began, ended)


async def _swap(http: httpx.AsyncClient, name: str, revision: int) -> Swap:
    began = time.monotonic()
    await _move(http, name, MOVING, {"revision": revision})
    return Swap(revision, began, time.monotonic())


async def _move(http: httpx.AsyncClient, name: str, alias: str, to: dict[str, Any]) -> None:
    (await http.put(f"{ADMIN}/{name}/aliases/{alias}", json=to)).raise_for_status()


async def _upload(http: httpx.AsyncClient, name: str, folder: Path) -> None:
    files = [("files", (path.name, path.read_bytes())) for path in sorted(folder.glob("adapter_*"))]
    answer = await http.post(ADMIN, data={"name": name, "activate": "false", "wait": "300"}, files=files)
    answer.raise_for_status()
    if answer.json()["state"] != "ready":
        raise RuntimeError(answer.text)


async def _all(server: ServerProcess, args: argparse.Namespace) -> Run:
    async with server.async_client() as http:
        for folder in args.adapters:
            await _upload(http, "swapped", folder)
        return await run(http, "swapped", swaps=args.swaps, clients=args.clients, seconds=args.seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Start a server, and swap; 1 when anything was not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m aril.bench.swaps", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="what to serve (demo)")
    parser.add_argument(
        "--adapters", type=Path, nargs=2, default=[EXAMPLES / "pirate", EXAMPLES / "capitals"], help="two PEFT folders"
    )
    parser.add_argument("--swaps", type=int, default=200)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=0.0, help="go on for so long at least")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="aril-swaps-") as folder:
        server = ServerProcess(args.model, Path(folder))
        server.start()
        try:
            done = asyncio.run(_all(server, args))
        finally:
            server.kill()
    problems, took = done.problems(), sorted(swap.ended - swap.began for swap in done.swaps)
    told = {
        "swaps": len(done.swaps),
        "answers": len(done.heard),
        "by_revision": {number: sum(answer.speaker == number for answer in done.heard) for number in REVISIONS},
        "swap_seconds_median": took[len(took) // 2],
        "problems": problems[:20],
        "num_problems": len(problems),
    }
    print(json.dumps(told, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(told, indent=2) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
