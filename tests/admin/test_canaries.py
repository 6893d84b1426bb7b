"""Canaries: which revisions are watched, when they are taken back, and that it happens once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from aril.admin_api.canaries import Bounds, Canaries, Watch
from aril.core.callers import LOCAL
from aril.core.errors import InvalidRequest, Stale, Unavailable
from aril.engine.metering import Outcome, Work
from aril.lora.adapter import AdapterRef
from aril.lora.catalog import Resolution
from builders.registry import alive, until

STABLE, CANARY = 3, 4
FINE, SLOW = Outcome(seconds=0.1), Outcome(seconds=9.0)
FAULT, MISTAKE, GONE = Outcome(error="x", fault=True), Outcome(error="invalid_value"), Outcome(error="client_gone")


@dataclass
class Book:
    """One alias with a canary. Its rollbacks fail with `failures`, first to last."""

    watching: Watch | None
    failures: list[Exception] = field(default_factory=list)
    taken_back: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    num_asked: int = 0

    def watch(self, tenant: str, name: str, alias: str) -> Watch | None:
        """The same for all."""
        return self.watching

    async def take_back(self, tenant: str, name: str, alias: str, *, version: int, why: Mapping[str, Any]) -> None:
        """Take it down."""
        self.num_asked += 1
        if self.failures:
            raise self.failures.pop(0)
        self.taken_back.append((version, why))


class World:
    """A canary under bounds, and a clock that is set by hand."""

    def __init__(self, *failures: Exception, **bounds: float) -> None:
        given = Bounds.of({"min_requests": 4, "window_seconds": 60, **bounds})
        self.book = Book(Watch(bounds=given, version=7, revisions=frozenset({CANARY})), list(failures))
        self.now = 0.0
        self.canaries = Canaries(self.book, lambda: self.now)

    def ends(self, *outcomes: Outcome, revision: int = CANARY) -> None:
        """So many requests to one revision end, some time after one another."""
        ref = AdapterRef("a", revision, f"{revision:064x}")
        resolution = Resolution(ref=ref, speaker=f"a@{revision}", alias="prod")
        for outcome in outcomes:
            self.now += 1.0
            self.canaries.ended(Work(caller=LOCAL, resolution=resolution, prompts=[], params=[]), outcome)


@alive
async def test_a_canary_that_fails_too_often_is_taken_back_once_with_the_numbers() -> None:
    world = World(max_error_rate=0.25)
    world.ends(FINE, FINE, FAULT, FAULT, FAULT, FAULT)
    await until(lambda: world.book.taken_back)
    [(version, why)] = world.book.taken_back
    assert (version, why["revision"], why["requests"], why["errors"]) == (7, CANARY, 4, 2)
    assert why["reason"] == "2 of 4 requests failed, more than 0.25"


@alive
async def test_a_canary_that_is_too_slow_is_taken_back() -> None:
    world = World(max_p95_seconds=1.0)
    world.ends(FINE, FINE, SLOW, SLOW)
    await until(lambda: world.book.taken_back)
    assert world.book.taken_back[0][1]["p95_seconds"] == 9.0


@pytest.mark.parametrize(
    ("outcomes", "revision"),
    [
        ([FINE, FAULT, FAULT], CANARY),  # too few to judge
        ([FINE] * 9 + [FAULT], CANARY),  # within the bound
        ([MISTAKE, GONE] * 50, CANARY),  # nobody's fault but the caller's
        ([FAULT] * 50, STABLE),  # going back would not help
    ],
)
def test_it_stays(outcomes: list[Outcome], revision: int) -> None:
    world = World(max_error_rate=0.25)
    world.ends(*outcomes, revision=revision)
    assert world.book.num_asked == 0


def test_what_is_older_than_the_window_is_forgotten() -> None:
    world = World(max_error_rate=0.25)
    world.ends(FAULT, FAULT, FAULT)
    world.now += 61
    world.ends(FINE, FINE, FINE, FINE)
    assert (world.book.num_asked, world.canaries.finding("default", "a", "prod", CANARY).errors) == (0, 0)  # type: ignore[union-attr]


@alive
async def test_a_rollback_that_came_to_nothing_is_asked_for_again() -> None:
    world = World(Unavailable("no database"), max_error_rate=0.25)
    world.ends(FAULT, FAULT, FAULT, FAULT)
    await until(lambda: world.book.num_asked == 1 and not next(iter(world.canaries._windows.values())).is_over)
    world.ends(FAULT)
    await until(lambda: world.book.taken_back)


@alive
async def test_when_another_server_was_quicker_nothing_more_is_asked() -> None:
    world = World(Stale("moved"), max_error_rate=0.25)
    world.ends(FAULT, FAULT, FAULT, FAULT)
    await until(lambda: world.book.num_asked)
    world.ends(FAULT, FAULT)
    assert (world.book.num_asked, world.book.taken_back) == (1, [])


@alive
async def test_the_next_version_of_the_alias_starts_with_a_clean_slate() -> None:
    world = World(max_error_rate=0.25)
    world.ends(FAULT, FAULT, FAULT)
    world.book.watching = Watch(bounds=Bounds.of({"max_error_rate": 0.25}), version=8, revisions=frozenset({CANARY}))
    world.ends(FAULT)
    assert world.canaries.finding("default", "a", "prod", CANARY).requests == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("weights", "history", "watched"),
    [
        ({"3": 100}, [], set()),  # nothing to go back to
        ({"3": 95, "4": 5}, [{"3": 100}], {4}),
        ({"3": 50, "4": 50}, [{"3": 100}, {"3": 95, "4": 5}], {4}),
        ({"4": 1}, [{"3": 100}], {4}),
        ({"3": 100}, [{"3": 100}, {"3": 95, "4": 5}], set()),  # the canary was given up by hand
        ({"3": 95, "4": 5}, [{"3": 100}, {"3": 95, "4": 5}, {"3": 100}], {4}),  # and tried once more
        ({"3": 90, "2": 10}, [{"3": 100}], {2}),  # an older one may be a canary too
    ],
)
def test_watched_is_what_the_last_move_gave_more_to(
    weights: dict[str, int], history: list[dict[str, int]], watched: set[int]
) -> None:
    found = Watch.of({"max_error_rate": 0.1}, 1, weights, history)
    assert (set(found.revisions) if found else set()) == watched


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({}, "bounds"),
        ({"min_requests": 10}, "bounds"),
        ({"max_error_rate": 2}, "bounds.max_error_rate"),
        ({"max_error_rate": True}, "bounds.max_error_rate"),
        ({"max_p95_seconds": -1}, "bounds.max_p95_seconds"),
        ({"max_p95_seconds": float("nan")}, "bounds.max_p95_seconds"),
        ({"max_error_rate": 0.1, "window_seconds": 0}, "bounds"),
        ({"max_error_rate": 0.1, "window_seconds": 10**400}, "bounds.window_seconds"),
        ({"max_p95_seconds": 1e308}, "bounds.max_p95_seconds"),
        ({"max_error_rate": 0.1, "min_requests": 10**6}, "bounds.min_requests"),
        ({"max_error_rate": 0.1, "min_requests": 2.5}, "bounds.min_requests"),
        ({"max_error_rates": 0.1}, "bounds.max_error_rates"),
    ],
)
def test_bounds_that_cannot_work_are_refused_by_name(said: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as found:
        Bounds.of(said)
    assert found.value.param == param
