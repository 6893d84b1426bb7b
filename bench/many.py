"""A registry of very many adapters: how long a list, a search and a resolve take, and what they add to a start.

    python -m aril.bench.many --adapters 2000 --active 500 --json many.json
    python -m aril.bench.many --database-url postgresql://...

The rows are written straight into the database, each with a folder of its digest in the store; no request reads one.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import httpx
from sqlalchemy.orm import Session

from ..admin_api import repo
from ..admin_api.catalog import AdapterCatalog
from ..admin_api.db import Database
from ..admin_api.migrate import upgrade
from ..admin_api.repo import Facts, Particulars
from ..admin_api.residency import Residency
from ..admin_api.settings import AdminSettings
from ..admin_api.tables import State
from ..core.callers import LOCAL
from ..engine.client import EngineClient
from .process import ServerProcess

ADMIN = "/admin/v1/adapters"
REPEATS = 300
WARM_UP = 100  # requests that are not counted: a start makes ready on the side for a second what it may need later
STARTS = 3
MOST_LIST_MS, MOST_RESOLVE_MS, MOST_START_S = 20.0, 0.2, 2.0
CONFIG = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}


def fill(database: Database, store: Path, *, adapters: int, active: int) -> None:
    """So many READY adapters of one revision, of which the bare names of `active` mean something."""

    def write(session: Session) -> None:
        for at in range(adapters):
            digest = hashlib.sha256(str(at).encode()).hexdigest()
            (store / "adapters" / digest).mkdir(parents=True, exist_ok=True)
            facts = Facts(digest, 1 << 20, 16, ("q_proj", "v_proj"), CONFIG, ())
            said = Particulars(description=f"number {at} of many", activate=at < active)
            revision = repo.record(session, LOCAL, f"adapter-{at:05}", facts, said)
            revision.state, revision.checked_by = State.CHECKING, "bench"
            session.flush()
            repo.become_ready(session, revision, {"problems": []}, LOCAL)

    database.transact(write)


def lists(server: ServerProcess, adapters: int) -> dict[str, list[float]]:
    """How long a client waits, in seconds, each time, by what it asks."""
    middle = f"adapter-{adapters // 2:05}@1"
    asked: dict[str, tuple[str, dict[str, str]]] = {
        "list": (ADMIN, {}),
        "list of 20": (ADMIN, {"limit": "20"}),
        "list, from the middle": (ADMIN, {"cursor": middle}),
        "search, few found": (ADMIN, {"query": "number 77"}),
        "search, none found": (ADMIN, {"query": "nothing like it"}),
        "by state": (ADMIN, {"state": "ready"}),
        "by state, 20": (ADMIN, {"state": "ready", "limit": "20"}),
        "one": (f"{ADMIN}/adapter-00001", {}),
        "models": ("/v1/models", {}),
    }
    with server.client() as http:
        for _ in range(WARM_UP):
            _get(http, ADMIN, {})
        return {what: waits(partial(_get, http, *how)) for what, how in asked.items()}


def resolve(database: Database) -> float:
    """The 99th percentile of a resolve of an adapter that the engine knows, in ms, over all active names."""
    catalog = AdapterCatalog("base", Residency(cast(EngineClient, AllThere())))
    catalog.put_all(database.transact(repo.all_listed))

    async def each() -> list[float]:
        taken: list[float] = []
        for _ in range(2):  # the first time, each is loaded
            taken.clear()
            for entry in await catalog.list(LOCAL):
                began = time.perf_counter()
                await catalog.resolve(entry.name, LOCAL, lambda _header: "someone")
                taken.append(time.perf_counter() - began)
        return taken

    return _p99(asyncio.run(each()))


def waits(act: Callable[[], object]) -> list[float]:
    """How long `act` takes, in seconds, each time."""
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return taken


class AllThere:
    """As much of an engine as a resolve asks for."""

    async def load_adapter(self, ref: object, *, pinned: bool = False) -> None:
        """It is there."""


def starts(server: ServerProcess) -> float:
    """The median time to /ready, in seconds."""
    taken = []
    for _ in range(STARTS):
        taken.append(server.start())
        server.kill()
    return statistics.median(taken)


def _get(http: httpx.Client, path: str, params: dict[str, str]) -> None:
    http.get(path, params=params).raise_for_status()


def _p99(taken: list[float]) -> float:
    return sorted(taken)[int(len(taken) * 0.99)] * 1e3


def main(argv: Sequence[str] | None = None) -> int:
    """Fill a registry and measure; 1 when something takes longer than it may."""
    parser = argparse.ArgumentParser(prog="python -m aril.bench.many", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="what to serve (demo)")
    parser.add_argument("--adapters", type=int, default=2000)
    parser.add_argument("--active", type=int, default=500)
    parser.add_argument("--database-url", help="an empty database (a new SQLite file)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="aril-many-") as name:
        folder = Path(name)
        flags = ["--no-examples", *(["--database-url", args.database_url] if args.database_url else [])]
        server = ServerProcess(args.model, folder, *flags)
        settings = AdminSettings(state_dir=folder / "state", database_url=args.database_url)
        server.start()
        server.kill()
        empty = starts(server)
        database = Database(settings.url)
        upgrade(database)
        fill(database, server.store, adapters=args.adapters, active=args.active)
        full = starts(server)
        server.start()
        try:
            waited, resolve_ms = lists(server, args.adapters), resolve(database)
        finally:
            server.kill()
    lists_ms = {what: _p99(taken) for what, taken in waited.items()}
    slow = [what for what, ms in lists_ms.items() if ms > MOST_LIST_MS]
    slow += ["resolve"] if resolve_ms > MOST_RESOLVE_MS else []
    slow += ["start"] if full - empty > MOST_START_S else []
    found = {
        "start_s": {"empty": round(empty, 3), "full": round(full, 3)},
        "median_ms": {what: round(statistics.median(taken) * 1e3, 2) for what, taken in waited.items()},
        "p99_ms": {what: round(ms, 2) for what, ms in lists_ms.items()},
        "resolve_p99_ms": round(resolve_ms, 4),
        "too_slow": slow,
    }
    print(json.dumps(found, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
