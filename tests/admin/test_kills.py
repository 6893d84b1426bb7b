"""`kill -9` in the middle of changes: what was acknowledged is there, and the checks would say so if it were not."""

from __future__ import annotations

import random
import time
from pathlib import Path

from aril.bench.process import ServerProcess
from aril.bench.restart.__main__ import run
from aril.bench.restart.checks import contradictions
from aril.bench.restart.known import Known
from builders.commands import SMALL


def made_up() -> Known:
    """What no server has acknowledged."""
    revisions, aliases = {("nobody", 1): "0" * 64}, {("nobody", "prod"): {"1": 1}}
    return Known(revisions, aliases, keys={"key_0": "x"}, head="0" * 64, written=1 << 20)


def test_what_was_acknowledged_survives_kills(base: Path, folders: list[Path], empty_url: str, tmp_path: Path) -> None:
    server = ServerProcess(str(base), tmp_path, *SMALL, "--no-examples", "--database-url", empty_url)
    done = run(server, folders[0], trials=2, seed=0)
    assert [trial.problems for trial in done] == [[], []]


def test_what_was_not_acknowledged_is_told(base: Path, tmp_path: Path) -> None:
    server = ServerProcess(str(base), tmp_path, *SMALL, "--no-examples")
    server.start()
    try:
        with server.client() as client:
            found = contradictions(client, server.store, made_up(), random.Random(0), time.monotonic())
    finally:
        server.kill()
    for lost in ("nobody@1 was", "nobody@prod was", "key_0: acknowledged", "the audit is not sound", "usage: "):
        assert any(problem.startswith(lost) for problem in found), f"{lost!r} is not in {found}"
