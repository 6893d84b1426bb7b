"""Labels for names without end: few series, those of the busiest, and flat whatever comes."""

from __future__ import annotations

import pytest
from aril.core.busiest import CANDIDATES, HALF_LIFE, LABEL, Busiest
from prometheus_client import CollectorRegistry, Counter


class Time:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    """It stands at zero."""
    return Time()


@pytest.fixture
def busiest(clock: Time) -> Busiest:
    """Two names may have series."""
    return Busiest(2, clock)


def watched(busiest: Busiest) -> Counter:
    """A metric by adapter and code."""
    made = Counter("c", "c", [LABEL, "code"], registry=CollectorRegistry())
    busiest.watch(made)
    return made


def shown(metric: Counter) -> set[str]:
    """The adapters that have series."""
    return {sample.labels[LABEL] for family in metric.collect() for sample in family.samples}


def test_the_first_names_have_series_and_the_rest_share_one(busiest: Busiest) -> None:
    assert [busiest.touch(name) for name in ("a", "b", "c", "a")] == ["a", "b", "other", "a"]


def test_whoever_only_asks_takes_no_series_from_another(busiest: Busiest) -> None:
    assert [busiest.label(name) for name in ("a", "b", "c")] == ["a", "b", "other"]


def test_a_much_busier_name_takes_the_series_of_the_least_busy(busiest: Busiest) -> None:
    counter = watched(busiest)
    for name in ["a"] * 9 + ["b"] + ["c"] * 10:
        counter.labels(busiest.touch(name), "x").inc()
    assert shown(counter) == {"a", "c", "other"}


def test_two_that_are_alike_do_not_take_turns(busiest: Busiest) -> None:
    labels = [[busiest.touch(name) for name in ("a", "b", "c")] for _ in range(100)]
    assert labels[0] == labels[-1] == ["a", "b", "other"]


def test_what_was_busy_long_ago_makes_room(busiest: Busiest, clock: Time) -> None:
    for name in ["a"] * 1000 + ["b"] * 1000:
        busiest.touch(name)
    clock.now = 20 * HALF_LIFE
    assert [busiest.touch("c") for _ in range(10)][-1] == "c"


def test_ten_thousand_names_leave_memory_and_labels_as_they_were(busiest: Busiest) -> None:
    counter = watched(busiest)
    for number in range(10_000):
        counter.labels(busiest.touch(f"name{number}"), "x").inc()
    assert len(shown(counter)) == 3
    assert len(busiest._heat) <= CANDIDATES * busiest.limit


def test_with_no_series_to_give_all_names_share_one(clock: Time) -> None:
    none = Busiest(0, clock)
    assert {none.touch(f"name{number % 3}") for number in range(100)} == {"other"}
