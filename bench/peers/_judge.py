"""Whether contenders said what the model says: each token beside transformers (and PEFT) in float32.

The judge reads a contender's own tokens, so one early difference does not count again at every later position. Counted
are the positions before the first near-tie of a row, where two tokens' logits are so close that rounding decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..race import Case, Contender
from ..worker import Worker
from ._peer import Base, Stage

NEAR_TIE = 1e-2  # of the two highest logits
ROWS = 8  # of a case at most: one of each adapter where there are 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """Positions before near-ties, and all that are no near-ties; `worst`: the largest logit gap that was overruled."""

    positions: int = 0
    agreeing: int = 0
    decided: int = 0
    decided_agreeing: int = 0
    worst: float = 0.0

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(
            self.positions + other.positions,
            self.agreeing + other.agreeing,
            self.decided + other.decided,
            self.decided_agreeing + other.decided_agreeing,
            max(self.worst, other.worst),
        )

    def __str__(self) -> str:
        if not self.positions:
            return "no position before a near-tie"
        share = 100 * self.agreeing / self.positions
        return f"{share:.1f}% of {self.positions} positions ({self.decided_agreeing} of {self.decided} in all)"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a contender said: prompts, the tokens they were continued by, the adapter of each row."""

    prompts: Sequence[Sequence[int]]
    tokens: Sequence[Sequence[int]]
    adapters: Sequence[str | None]

    def rows(self, chosen: Sequence[int]) -> Answer:
        """Some of its rows."""
        return Answer(
            [self.prompts[at] for at in chosen],
            [self.tokens[at] for at in chosen],
            [self.adapters[at] for at in chosen],
        )


def answer_of(contender: Contender, case: Case, vocab_size: int, said: Mapping[str, Any]) -> Answer:
    """What it said in the first round, cut to what is judged."""
    whole = Answer(case.prompts(0, vocab_size), said["tokens"], contender.rows(case))
    return whole.rows(range(min(ROWS, case.streams)))


def verdict(found: Sequence[Sequence[Sequence[float]]]) -> Verdict:
    """Of the judge's pairs, [rows][tokens]: how far a token's logit is under the highest, and the second's."""
    total = Verdict()
    for row in found:
        open_yet = True
        for under, gap in row:
            decided = gap >= NEAR_TIE
            open_yet = open_yet and decided
            agrees = under == 0.0
            total += Verdict(open_yet, open_yet and agrees, decided, decided and agrees, under if decided else 0.0)
    return total


class Judge:
    """A process with the reference in it; a context manager."""

    def __init__(self, python: Path, stage: Stage, base: Base, threads: int) -> None:
        job: dict[str, Any] = {"dtype": "float32", "threads": threads, "adapters": dict(base.adapters)}
        if stage.weights == "int4":
            job |= {"path": str(base.gguf.parent), "gguf_file": base.gguf.name}
        else:
            job |= {"path": str(base.folder), "gguf_file": None}
        self._worker = Worker.foreign(python, "transformers_worker", job, {"HF_HUB_OFFLINE": "1"})

    def hear(self, said: Answer) -> Verdict:
        """How often it agrees."""
        found = self._worker.ask("judge", prompts=said.prompts, tokens=said.tokens, adapters=said.adapters)
        return verdict(found)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()
