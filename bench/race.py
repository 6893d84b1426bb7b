"""Engines beside each other: the same load for each in turn, again and again, so that whatever else the machine does
falls on all alike. Ratios are taken within a round and their median over the rounds.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from .worker import Worker

FIRST_TOKEN_ID = 3  # below are the ids that tokenizers like to give a meaning


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """Rows at once, how many adapters they are spread over (0: all are of the base), and the random tokens of each."""

    streams: int
    adapters: int = 0
    input_len: int = 128
    output_len: int = 128

    def __str__(self) -> str:
        rows = f"{self.streams} stream{'s' if self.streams > 1 else ''}"
        return f"{rows}, {self.adapters} adapters" if self.adapters else rows

    def prompts(self, at: int, vocab_size: int) -> list[list[int]]:
        """The rows of round `at`: the same for every contender, and of no beginning in common."""
        numbers = random.Random(f"{at} {self!r}")
        tokens = range(FIRST_TOKEN_ID, vocab_size)
        return [numbers.choices(tokens, k=self.input_len) for _ in range(self.streams)]


@dataclass(frozen=True, slots=True)
class Contender:
    """A worker with an engine in it."""

    name: str
    worker: Worker
    adapters: Sequence[str] = ()  # names that its engine knows
    cases: Collection[Case] | None = None  # those that it runs; None: all that it has the adapters for

    def refuses(self, case: Case) -> str | None:
        """Why it does not run a case."""
        if self.cases is not None and case not in self.cases:
            return "not one of its cases"
        return f"it has {len(self.adapters)} adapters" if case.adapters > len(self.adapters) else None

    def rows(self, case: Case) -> list[str | None]:
        """The adapter of each row, in turn; None: the base."""
        names = self.adapters[: case.adapters]
        return [names[row % len(names)] if names else None for row in range(case.streams)]


@dataclass(frozen=True, slots=True)
class Lap:
    """One case on one engine."""

    contender: str
    case: Case
    round: int
    tokens_per_s: float  # of output, prompts included in the time
    decode_tokens_per_s: float  # after the first token of the last row; nan where there is no other
    first_token_s: float = math.nan  # the mean over the rows
    between_tokens_s: float = math.nan  # the mean over the tokens of all rows but the first ones
    longest_pause_s: float = math.nan
    prompt_tokens_per_s: float = math.nan  # until the first token of the last row


@dataclass(frozen=True, slots=True)
class Rules:
    """How often a race goes round, and when a slow contender may rest."""

    rounds: int
    vocab_size: int = 256  # ids go up to it; what no tokenizer of the contenders is smaller than
    patience: float = math.inf  # seconds of laps in one case after which a contender sits out


Heard = Callable[[Lap, Mapping[str, Any]], None]  # what the worker said comes along
Dropped = Callable[[Contender, RuntimeError], None]


def race(
    contenders: Sequence[Contender], cases: Sequence[Case], rules: Rules, *, heard: Heard, dropped: Dropped
) -> list[Lap]:
    """Every case on every contender that can, round for round, every other round in reverse order.

    A contender whose worker fails is dropped, and the others go on.
    """
    laps: list[Lap] = []
    spent: dict[tuple[str, Case], float] = {}
    running = list(contenders)

    def lap(contender: Contender, case: Case, at: int) -> tuple[Lap, Mapping[str, Any]] | None:
        try:
            return run_lap(contender, case, at, rules.vocab_size)
        except RuntimeError as error:
            running.remove(contender)
            dropped(contender, error)
            return None

    for contender in contenders:
        lap(contender, Case(1, 0, 8, 4), 0)  # first calls build and tune things
    for at in range(rules.rounds):
        for case in cases:
            for contender in running[:: -1 if at % 2 else 1]:
                if contender.refuses(case) or spent.get((contender.name, case), 0.0) >= rules.patience:
                    continue
                if (done := lap(contender, case, at)) is None:
                    continue
                laps.append(done[0])
                spent[contender.name, case] = spent.get((contender.name, case), 0.0) + done[1]["seconds"]
                heard(*done)
    return laps


def run_lap(contender: Contender, case: Case, at: int, vocab_size: int) -> tuple[Lap, Mapping[str, Any]]:
    """One case on one contender, and what its worker said; raises RuntimeError when that fails."""
    prompts, rows = case.prompts(at, vocab_size), contender.rows(case)
    took = contender.worker.ask("speed", prompts=prompts, adapters=rows, output_len=case.output_len)
    return _lap(contender.name, case, at, took["seconds"], took["stamps"]), took


def _lap(name: str, case: Case, at: int, seconds: float, stamps: Sequence[Sequence[float]]) -> Lap:
    """`stamps`: of each row, when each of its tokens came, in seconds after the beginning."""
    total = sum(map(len, stamps))
    first = [row[0] for row in stamps]
    pauses = [after - before for row in stamps for before, after in pairwise(row)]
    return Lap(
        name,
        case,
        at,
        total / seconds,
        (total - case.streams) / (seconds - max(first)) if pauses else math.nan,
        statistics.fmean(first),
        statistics.fmean(pauses) if pauses else math.nan,
        max(pauses, default=math.nan),
        case.streams * case.input_len / max(first),
    )


@dataclass(frozen=True, slots=True)
class Line:
    """What became of one contender in one case: medians, and ratios of tokens/s in the same round."""

    contender: str
    case: Case
    tokens_per_s: float
    decode_tokens_per_s: float
    beside_first: float | None  # times the first contender's speed in this case
    decode_beside_first: float | None
    share_of_own: float | None  # with adapters: of its own speed without


def lines(laps: Sequence[Lap]) -> list[Line]:
    """The laps in short, in the order in which contenders and cases first came."""
    keys = dict.fromkeys((lap.contender, lap.case) for lap in laps)
    first = laps[0].contender
    return [_line(laps, contender, case, first) for contender, case in sorted(keys, key=lambda key: key[1])]


def _line(laps: Sequence[Lap], contender: str, case: Case, first: str) -> Line:
    own = laps_of(laps, contender, case)
    beside = laps_of(laps, first, case) if contender != first else []
    bare = laps_of(laps, contender, replace(case, adapters=0)) if case.adapters else []
    return Line(
        contender,
        case,
        statistics.median(lap.tokens_per_s for lap in own),
        statistics.median(lap.decode_tokens_per_s for lap in own),
        _middle(ratios(own, beside, lambda lap: lap.tokens_per_s)),
        _middle(ratios(own, beside, lambda lap: lap.decode_tokens_per_s)),
        _middle(ratios(own, bare, lambda lap: lap.tokens_per_s)),
    )


def laps_of(laps: Sequence[Lap], contender: str, case: Case) -> list[Lap]:
    """Those of one contender in one case, round by round."""
    return [lap for lap in laps if lap.contender == contender and lap.case == case]


def ratios(ours: Sequence[Lap], theirs: Sequence[Lap], value: Callable[[Lap], float]) -> list[float]:
    """Ours over theirs in each round that both ran."""
    beside = {lap.round: lap for lap in theirs}
    return [value(lap) / value(beside[lap.round]) for lap in ours if lap.round in beside]


def _middle(found: Sequence[float]) -> float | None:
    """The median; None where there is nothing beside."""
    return statistics.median(found) if found else None


def table(found: Sequence[Line]) -> str:
    """For people."""
    width = max(len(line.contender) for line in found)
    head = f"{'checkpoint':{width}}  {'case':24}  tokens/s  decoding  x first  decoding  of own"
    return "\n".join([head, *(_row(line, width) for line in found)])


def _row(line: Line, width: int) -> str:
    ratios = (line.beside_first, line.decode_beside_first, line.share_of_own)
    first, decode, own = ("" if each is None else f"{each:.2f}" for each in ratios)
    rates = f"{line.tokens_per_s:8.1f}  {line.decode_tokens_per_s:8.1f}"
    return f"{line.contender:{width}}  {line.case!s:24}  {rates}  {first:>7}  {decode:>8}  {own:>6}".rstrip()
