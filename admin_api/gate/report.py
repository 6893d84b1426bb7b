"""What the gate found: every check with its outcome, its numbers and how long it took, and all that is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import InvalidRequest

CHECKS = ("structure", "base", "numbers", "memory", "licence", "smoke", "golden")  # in their order
MAX_PROBLEMS = 100  # that a report tells; an adapter for another base has one for each tensor


@dataclass(slots=True)
class Check:
    """One check under way. It passes unless it finds problems."""

    name: str
    numbers: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def said(self) -> dict[str, Any]:
        """For the report."""
        outcome = "failed" if self.problems else "passed"
        return {"name": self.name, "outcome": outcome, "seconds": round(self.seconds, 4), **self.numbers}


class Report:
    """Owned by whoever runs the checks, one after the other."""

    def __init__(self) -> None:
        self._checks: list[Check] = []
        self._started = time.perf_counter()

    @contextmanager
    def check(self, name: str) -> Iterator[Check]:
        """The check `name`, timed. An InvalidRequest is its problem; one that raises anything else came to nothing."""
        assert name in CHECKS, name
        check, started = Check(name), time.perf_counter()
        try:
            yield check
        except InvalidRequest as error:
            check.problems += error.problems or (error.message,)
        check.seconds = time.perf_counter() - started
        self._checks.append(check)

    @property
    def problems(self) -> list[str]:
        """All that is wrong."""
        return [problem for check in self._checks for problem in check.problems]

    def said(self, base: Mapping[str, Any], attempts: int) -> dict[str, Any]:
        """The whole, as JSON. Checks that came to nothing because of an earlier one are skipped."""
        done = {check.name: check.said() for check in self._checks}
        return {
            "problems": shortened(self.problems),
            "notes": [note for check in self._checks for note in check.notes],
            "checks": [done.get(name, {"name": name, "outcome": "skipped"}) for name in CHECKS],
            "base": dict(base),
            "attempts": attempts,
            "seconds": round(time.perf_counter() - self._started, 4),
        }


def shortened(problems: Sequence[str]) -> list[str]:
    """The first ones, and how many there are besides."""
    rest = len(problems) - MAX_PROBLEMS
    return list(problems) if rest <= 0 else [*problems[:MAX_PROBLEMS], f"and {rest} more problem{'s' * (rest > 1)}"]
