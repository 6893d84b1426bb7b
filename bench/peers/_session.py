"""One stage: start every contender, run the cases in turn, ask each what it leaks, end them, and have them judged.

A contender that fails is told in one line and left out; the others go on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..race import Case, Contender, Lap, Rules, race
from ..worker import Worker
from ._judge import Answer, Judge, Verdict, answer_of
from ._memory import in_large_pages, resident
from ._peer import Engine, Stage

WARM_UP = Case(1, 0, 8, 4)
LEAK_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine, and the interpreter that it runs under; None: Aril's own."""

    engine: Engine
    python: Path | None

    def start(self) -> Worker:
        """Its process, ready. Raises RuntimeError with its last words."""
        engine = self.engine
        if self.python is None:
            return Worker.ours(engine.program, engine.job, engine.env)
        return Worker.foreign(self.python, engine.program, engine.job, engine.env)


@dataclass(frozen=True, slots=True)
class Start:
    """A fresh process: seconds until it could be asked and until its first token; its bytes then, and after a lap."""

    contender: str
    ready_s: float
    first_token_s: float
    idle_bytes: int
    used_bytes: int
    filled_bytes: int  # of KV, by that lap, in two bytes a number
    large_bytes: int = 0  # of those after the lap, where large pages were asked for


@dataclass(slots=True)
class Found:
    """What became of a stage. `alone` and `beside`: base rows without and among rows of adapters."""

    stage: Stage
    laps: list[Lap] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    verdicts: dict[tuple[str, Case], Verdict] = field(default_factory=dict)
    alone: dict[str, Verdict] = field(default_factory=dict)
    beside: dict[str, Verdict] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def fail(self, name: str, error: Exception) -> None:
        """Remember why a contender is left out, and say it."""
        lines = str(error).strip().splitlines() or [type(error).__name__]
        self.failures[name] = lines[-1]
        say(f"{self.stage.name}: {name} failed: {lines[-1]}")


def say(text: str) -> None:
    """For whoever waits."""
    print(text, file=sys.stderr, flush=True)


def run_race(stage: Stage, entries: Sequence[Entry], rules: Rules, judge: Callable[[], Judge] | None) -> Found:
    """The cases of a stage on all entries that start."""
    found = Found(stage)
    answers: dict[tuple[str, Case], Answer] = {}
    leaks: dict[str, tuple[Answer, Answer]] = {}
    with ExitStack() as stack:
        contenders = _started(entries, stack, found)
        by_name = {each.name: each for each in contenders}

        def heard(lap: Lap, said: Mapping[str, Any]) -> None:
            if lap.round == 0:
                answers[lap.contender, lap.case] = answer_of(by_name[lap.contender], lap.case, rules.vocab_size, said)
            say(f"{stage.name}, round {lap.round}: {lap.contender}, {lap.case}: {lap.tokens_per_s:.1f} tokens/s")

        def dropped(contender: Contender, error: RuntimeError) -> None:
            found.fail(contender.name, error)

        found.laps = race(contenders, stage.cases, rules, heard=heard, dropped=dropped)
        for each in contenders:
            if each.adapters and each.name not in found.failures:
                try:
                    leaks[each.name] = _leak(each, rules.vocab_size)
                except RuntimeError as error:
                    found.fail(each.name, error)
    if judge is not None:
        _judged(found, answers, leaks, judge)
    return found


def _started(entries: Sequence[Entry], stack: ExitStack, found: Found) -> list[Contender]:
    contenders = []
    for entry in entries:
        engine = entry.engine
        say(f"{found.stage.name}: starting {engine.name}")
        try:
            worker = stack.enter_context(entry.start())
        except (RuntimeError, OSError) as error:
            found.fail(engine.name, error)
            continue
        contenders.append(Contender(engine.name, worker, tuple(engine.adapters), engine.cases))
    return contenders


def _leak(contender: Contender, vocab_size: int) -> tuple[Answer, Answer]:
    """The same base rows alone, and each followed by a row of an adapter."""
    case = Case(len(contender.adapters), 0, 32, LEAK_TOKENS)
    prompts = case.prompts(0, vocab_size)
    base: list[str | None] = [None] * len(prompts)
    alone = contender.worker.ask("speed", prompts=prompts, adapters=base, output_len=LEAK_TOKENS)
    twice = [prompt for prompt in prompts for _ in range(2)]
    mixed = [name for adapter in contender.adapters for name in (None, adapter)]
    beside = contender.worker.ask("speed", prompts=twice, adapters=mixed, output_len=LEAK_TOKENS)
    return Answer(prompts, alone["tokens"], base), Answer(prompts, beside["tokens"][::2], base)


def _judged(
    found: Found,
    answers: Mapping[tuple[str, Case], Answer],
    leaks: Mapping[str, tuple[Answer, Answer]],
    judge: Callable[[], Judge],
) -> None:
    say(f"{found.stage.name}: judging what was said")
    try:
        with judge() as ear:
            found.verdicts = {key: ear.hear(said) for key, said in answers.items()}
            found.alone = {name: ear.hear(alone) for name, (alone, _) in leaks.items()}
            found.beside = {name: ear.hear(beside) for name, (_, beside) in leaks.items()}
    except (RuntimeError, OSError) as error:
        found.fail("the judge", error)


def run_starts(stage: Stage, entries: Sequence[Entry], rules: Rules, kv_bytes_of_token: int) -> Found:
    """Each entry started afresh in turn, every round, as long as its patience lasts."""
    found, spent = Found(stage), dict.fromkeys((entry.engine.name for entry in entries), 0.0)
    (case,) = stage.cases
    for at in range(rules.rounds):
        for entry in entries[:: -1 if at % 2 else 1]:
            name = entry.engine.name
            if name in found.failures or spent[name] >= rules.patience:
                continue
            try:
                start = _start(entry, case, rules.vocab_size, kv_bytes_of_token)
            except (RuntimeError, OSError) as error:
                found.fail(name, error)
                continue
            spent[name] += start.ready_s
            found.starts.append(start)
            say(f"{stage.name}, round {at}: {name}: ready in {start.ready_s:.1f} s, {start.used_bytes / 1e6:.0f} MB")
    return found


def _start(entry: Entry, case: Case, vocab_size: int, kv_bytes_of_token: int) -> Start:
    with entry.start() as worker:

        def ask(case: Case) -> Mapping[str, Any]:
            rows: list[str | None] = [None] * case.streams
            prompts = case.prompts(0, vocab_size)
            said: Mapping[str, Any] = worker.ask("speed", prompts=prompts, adapters=rows, output_len=case.output_len)
            return said

        idle = resident(worker.pid)
        first = ask(WARM_UP)["stamps"][0][0]
        ask(case)
        filled = case.streams * (case.input_len + case.output_len) * kv_bytes_of_token
        used, large = resident(worker.pid), in_large_pages(worker.pid)
        return Start(entry.engine.name, worker.ready_s, first, idle, used, filled, large)
