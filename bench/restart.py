"""The restart trial: `kill -9` in the middle of uploads and activations, then look whether anything contradicts itself.

    python -m aril.bench.restart --trials 10 --json restart.json

Each trial starts `aril serve`, changes the registry as fast as it answers, kills the server at a random moment, starts
it again and compares: the registry, the store on disk and /v1/models must agree, and every change that was acknowledged
must be there. Of the one change that was under way, either outcome is right.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import load_file, save_file

from ..lora.config import CONFIG_FILE, WEIGHTS_FILE
from ..lora.store import AdapterStore
from .process import ServerProcess

EXAMPLE = Path(__file__).parents[1] / "examples" / "adapters" / "pirate"
PHASES = ("upload", "activation")
KILL_AFTER = (0.0, 1.5)  # seconds of changes before the kill; several uploads of the demo's adapters fit
NUM_ASKED = 4  # active adapters that must answer a request after each start
ADMIN = "/admin/v1/adapters"


@dataclass(frozen=True, slots=True)
class Standing:
    """What is acknowledged of one adapter: which bytes it serves, if any, and how many revisions it has."""

    active: str | None
    num_revisions: int

    @classmethod
    def of(cls, view: dict[str, Any]) -> Standing:
        """The standing that an answer of the admin API tells."""
        return cls(view["digest"], len(view["revisions"]))


@dataclass(slots=True)
class Trial:
    """One kill, and what was found after it."""

    phase: str
    killed_after: float  # seconds
    num_acknowledged: int = 0
    under_way: str = ""
    start_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class Changes:
    """Changes a registry until the server dies; keeps what was acknowledged. Driven by one thread."""

    def __init__(self, adapter: Path, known: dict[str, Standing], numbers: Iterator[int]) -> None:
        self.known = known
        self.under_way = ""
        self.num_acknowledged = 0
        self._config = (adapter / CONFIG_FILE).read_bytes()
        self._tensors = load_file(adapter / WEIGHTS_FILE)
        self._numbers = numbers

    def begin(self, server: ServerProcess) -> None:
        """Learn what is there, and see to it that there is something to activate."""
        with server.client() as client:
            self.known = {view["name"]: Standing.of(view) for view in client.get(ADMIN).json()["data"]}
            for _ in range(3):
                self._upload(client)

    def run(self, phase: str, server: ServerProcess) -> None:
        """Change until an answer fails to come."""
        with server.client() as client:
            try:
                for _ in itertools.count():
                    self._upload(client) if phase == "upload" else self._activate(client)
            except httpx.TransportError:
                return

    def _upload(self, client: httpx.Client) -> None:
        """New bytes, mostly under a new name."""
        number = next(self._numbers)
        name = f"adapter-{number - number % 3 // 2}"  # every third one is a second revision of the name before it
        files = [("files", (CONFIG_FILE, self._config)), ("files", (WEIGHTS_FILE, self._weights(number)))]
        self._acknowledge(name, lambda: client.post(ADMIN, data={"name": name}, files=files))

    def _activate(self, client: httpx.Client) -> None:
        """Switch an adapter to another revision, off, or on."""
        number = next(self._numbers)
        name = list(self.known)[number % len(self.known)]
        standing = self.known[name]
        action = "deactivate" if standing.active and number % 2 else "activate"
        params = {"revision": str(1 + number % standing.num_revisions)} if action == "activate" else {}
        self._acknowledge(name, lambda: client.post(f"{ADMIN}/{name}/{action}", params=params))

    def _acknowledge(self, name: str, change: Any) -> None:
        self.under_way = name
        answer: httpx.Response = change()
        answer.raise_for_status()
        self.known[name] = Standing.of(answer.json())
        self.num_acknowledged += 1
        self.under_way = ""

    def _weights(self, number: int) -> bytes:
        """The adapter's tensors, each time a little different."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / WEIGHTS_FILE
            factor = torch.tensor(1.0 + number / 1000)
            save_file({name: (tensor * factor).to(tensor.dtype) for name, tensor in self._tensors.items()}, path)
            return path.read_bytes()


def contradictions(client: httpx.Client, store: Path, known: dict[str, Standing], under_way: str) -> list[str]:
    """Everything in which registry, store, /v1/models and the acknowledged changes do not agree."""
    views = {view["name"]: view for view in client.get(ADMIN).json()["data"]}
    models = [model["id"] for model in client.get("/v1/models").json()["data"]]
    served, active = set(models[1:]), {name for name, view in views.items() if view["active"]}
    revisions = [revision for view in views.values() for revision in view["revisions"]]
    needed = {revision["digest"] for revision in revisions if revision["state"] != "retired"}
    stored = set(AdapterStore(store).digests())
    found = [f"{name} is active, but not in /v1/models" for name in active - served]
    found += [f"{name} is in /v1/models, but not active" for name in served - active]
    found += [f"bytes {digest[:12]} are named, but not stored" for digest in needed - stored]
    found += [f"bytes {digest[:12]} are stored, but nothing names them" for digest in stored - needed]
    found += [f"staging holds {path.name}" for path in (store / "staging").iterdir()]
    found += [f"{name} was acknowledged and is gone" for name in known.keys() - views.keys() - {under_way}]
    found += [f"{name} was never asked for" for name in views.keys() - known.keys() - {under_way}]
    for name in known.keys() & views.keys():
        found += _losses(name, known[name], Standing.of(views[name]), under_way)
    return found


def _losses(name: str, before: Standing, after: Standing, under_way: str) -> list[str]:
    if name != under_way:
        return [] if before == after else [f"{name}: acknowledged {before}, found {after}"]
    return [f"{name}: revisions are gone"] if after.num_revisions < before.num_revisions else []


def silent(client: httpx.Client, names: Sequence[str]) -> list[str]:
    """Those adapters that do not answer."""
    body = {"prompt": "Hello", "max_tokens": 1}
    answers = {name: client.post("/v1/completions", json={**body, "model": name}) for name in names}
    return [f"{name} does not answer: {answer.text}" for name, answer in answers.items() if not answer.is_success]


def run(model: str, adapter: Path, folder: Path, *, trials: int, seed: int) -> list[Trial]:
    """Run all trials on one state folder."""
    rng = random.Random(seed)
    changes = Changes(adapter, {}, itertools.count())
    server = ServerProcess(model, folder)
    done: list[Trial] = []
    try:
        server.start()
        changes.begin(server)
        for at in range(trials):
            trial = Trial(PHASES[at % len(PHASES)], round(rng.uniform(*KILL_AFTER), 3))
            _kill_midway(server, changes, trial)
            trial.start_seconds = round(server.start(), 2)
            with server.client() as client:
                trial.problems = contradictions(client, server.store, changes.known, trial.under_way)
                views = client.get(ADMIN).json()["data"]
                active = [view["name"] for view in views if view["active"]]
                trial.problems += silent(client, rng.sample(active, min(NUM_ASKED, len(active))))
            changes.known = {view["name"]: Standing.of(view) for view in views}
            _show(at, trial)
            done.append(trial)
    finally:
        server.kill()
    return done


def _kill_midway(server: ServerProcess, changes: Changes, trial: Trial) -> None:
    before = changes.num_acknowledged
    worker = threading.Thread(target=changes.run, args=(trial.phase, server))
    worker.start()
    time.sleep(trial.killed_after)
    server.kill()
    worker.join()
    trial.under_way, changes.under_way = changes.under_way, ""
    trial.num_acknowledged = changes.num_acknowledged - before


def _show(at: int, trial: Trial) -> None:
    verdict = "; ".join(trial.problems) or "agrees"
    print(
        f"{at + 1:>5}  {trial.phase:<10}  {trial.killed_after:>8.3f}  {trial.num_acknowledged:>12}  "
        f"{trial.under_way or '-':<14}  {trial.start_seconds:>7.2f}  {verdict}",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials of the command line; 1 when anything was lost or contradicts itself."""
    parser = argparse.ArgumentParser(prog="python -m aril.bench.restart", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="what to serve (demo)")
    parser.add_argument("--adapter", type=Path, default=EXAMPLE, help="a PEFT folder that fits it (the example pirate)")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there")
    args = parser.parse_args(argv)
    print(
        f"{'trial':>5}  {'phase':<10}  {'killed/s':>8}  {'acknowledged':>12}  {'under way':<14}  {'start/s':>7}  found"
    )
    with tempfile.TemporaryDirectory(prefix="aril-restart-") as folder:
        done = run(args.model, args.adapter, Path(folder), trials=args.trials, seed=args.seed)
    failed = [trial for trial in done if trial.problems]
    print(f"{len(done) - len(failed)} of {len(done)} kills left everything in agreement")
    if args.json is not None:
        args.json.write_text(
            json.dumps({"seed": args.seed, "trials": [asdict(trial) for trial in done]}, indent=2) + "\n"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
