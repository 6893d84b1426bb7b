"""What Aril has to reach beside its peers, and whether it does: one line a claim, of those that were measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..race import Case, Lap, laps_of, ratios
from ._peer import ARIL, BARE
from ._report import Spread, above, speed_of
from ._session import Found
from ._stages import INT4, LARGE, MANY, MIXED, ONE, PLAIN, PREFILL, SMALL, START, WIDE

VLLM, LLAMA = "vllm", "llama.cpp"


@dataclass(frozen=True, slots=True)
class Facts:
    """The machine and the load, beside what was found of each stage."""

    found: Mapping[str, Found]
    size: Callable[[Case], Case]  # a case in the lengths of this run
    read_bytes_per_s: float
    weight_bytes: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Claim:
    """`value` must reach `least`, or stay under it where less is better."""

    what: str
    value: Spread
    least: float
    less_is_better: bool = False

    def __str__(self) -> str:
        holds = self.value.middle <= self.least if self.less_is_better else self.value.middle >= self.least
        asked = f"{'<=' if self.less_is_better else '>='} {self.least:g}"
        return f"{'holds' if holds else 'FAILS'}  {self.what:66} {asked:>8}  {self.value}"


def claims(facts: Facts) -> Iterator[Claim]:
    """In the order of the table that they are from."""
    one, many, mixed, wide = map(facts.size, (ONE, MANY, MIXED, WIDE))
    yield from _beside(facts, PLAIN, one, VLLM, 2.0)
    yield from _beside(facts, PLAIN, one, None, 1.5)
    yield from _bandwidth(facts, one)
    yield from _beside(facts, PLAIN, many, None, 2.0)
    yield from _beside(facts, SMALL, mixed, VLLM, 7.0)
    yield from _own(facts, SMALL, mixed, 0.85)
    yield from _own(facts, LARGE, wide, 0.40)
    for stage in ("int4, 1 thread", INT4):
        yield from _beside(facts, stage, one, LLAMA, 1.8)
    yield from _beside(facts, PLAIN, PREFILL, None, 1.0)
    yield from _beside(facts, PLAIN, PREFILL, VLLM, 1.3)
    yield from _starts(facts)
    yield from _own(facts, SMALL, many, 0.99)


def _beside(facts: Facts, stage: str, case: Case, peer: str | None, least: float) -> Iterator[Claim]:
    """Aril's speed over that of a peer, or of the best one."""
    if stage not in facts.found:
        return
    laps = facts.found[stage].laps
    others = [peer] if peer else list(dict.fromkeys(lap.contender for lap in laps if lap.contender not in (ARIL, BARE)))
    each = {name: _times(laps, name, case) for name in others}
    beside = {name: times for name, times in each.items() if times is not None}
    if beside:
        best = min(beside, key=lambda name: beside[name].middle)
        yield Claim(f"{stage}: {_named(case)}: x {'' if peer else 'the best peer, '}{best}", beside[best], least)


def _times(laps: list[Lap], name: str, case: Case) -> Spread | None:
    return Spread.of(ratios(laps_of(laps, ARIL, case), laps_of(laps, name, case), speed_of(case)))


def _own(facts: Facts, stage: str, case: Case, least: float) -> Iterator[Claim]:
    """Aril's speed with adapters loaded over its speed without."""
    if stage not in facts.found:
        return
    laps = facts.found[stage].laps
    bare = laps_of(laps, BARE, facts.size(MANY))
    share = Spread.of(ratios(laps_of(laps, ARIL, case), bare, lambda lap: lap.tokens_per_s))
    if share:
        what = _named(case) if case.adapters else f"{_named(case)} of the base, adapters loaded but idle"
        yield Claim(f"{stage}: {what}: share of Aril without adapters", share, least)


def _bandwidth(facts: Facts, one: Case) -> Iterator[Claim]:
    """Weights read in a second by one stream, over what the machine can read."""
    laps = laps_of(facts.found[PLAIN].laps, ARIL, one) if PLAIN in facts.found else []
    share = Spread.of([lap.decode_tokens_per_s * facts.weight_bytes / facts.read_bytes_per_s for lap in laps])
    if share:
        yield Claim(f"{PLAIN}: 1 stream: share of the measured read bandwidth", share, 0.75)


def _starts(facts: Facts) -> Iterator[Claim]:
    if START not in facts.found:
        return
    own = [start for start in facts.found[START].starts if start.contender == ARIL]
    ready = Spread.of([start.ready_s for start in own])
    memory = Spread.of([above(start, facts.weight_bytes, facts.kv_bytes) / 1e6 for start in own])
    if ready and memory:
        yield Claim("seconds from the start of the process until it can be asked", ready, 3.0, True)
        yield Claim("MB resident above the weights and the KV", memory, 400.0, True)


def _named(case: Case) -> str:
    return "prefill" if case == PREFILL else str(case)
