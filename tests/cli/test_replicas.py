"""Two real servers on one PostgreSQL and one store; either may be killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from builders.commands import SMALL, Files
from builders.postgres import running_postgres
from builders.processes import started

LIMIT = 10.0  # seconds, on a machine that has other things to do; an idle one takes less than 2


def within_limit(holds: Callable[[], bool]) -> None:
    """`holds` does so soon."""
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline, "the other server has not heard of it"
        time.sleep(0.01)


def test_what_one_server_takes_in_the_other_serves_whichever_of_them_is_killed(files: Files, tmp_path: Path) -> None:
    with running_postgres() as postgres:
        shared = ["--database-url", postgres.new_database(), "--store", str(tmp_path / "store")]
        flags = [*SMALL, "--served-model-name", "tiny", *shared]
        with started(files.model, tmp_path / "b", flags) as second:
            with started(files.model, tmp_path / "a", flags) as first:
                assert first.upload("one", files.adapter).is_success
                within_limit(lambda: second.answers("one") == 200)
                first.kill()
            assert second.upload("two", files.adapter).is_success
            assert second.answers("one") == 200
            with started(files.model, tmp_path / "a", flags) as again:
                assert again.models() == second.models() == ["tiny", "one", "two"]
                second.kill()
                assert [again.answers(name) for name in ("one", "two")] == [200, 200]
                assert again.http.delete("/admin/v1/adapters/one").is_success
                assert again.models() == ["tiny", "two"]
