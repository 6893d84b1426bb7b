"""Constraints of strangers: each is answered within two seconds, and whatever it does, it does elsewhere."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import as_completed

import pytest
from aril.core.errors import InvalidRequest, Unavailable, Unsupported
from aril.engine.grammar.asked import StructuredOutputs
from aril.engine.grammar.base import Vocabulary
from aril.engine.grammar.grammars import KEPT, Grammars
from aril.engine.grammar.nursery import MOST_SLOW
from builders.grammars import takes
from builders.hostile_grammars import HARMLESS, HOSTILE

GOOD = StructuredOutputs(choice=["yes", "no"])
SECONDS = 20.0  # within which each is answered by a machine with other things to do; else 2


@pytest.fixture(scope="module")
def grammars(vocabulary: Vocabulary) -> Iterator[Grammars]:
    made = Grammars("llguidance", lambda: vocabulary)
    made.of(GOOD).result()
    yield made
    made.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_constraint_is_refused_soon_and_the_next_one_is_not(
    grammars: Grammars, vocabulary: Vocabulary, name: str
) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidRequest) as error:
        grammars.of(StructuredOutputs(**HOSTILE[name])).result()
    assert time.monotonic() - began < SECONDS
    assert (error.value.param, len(error.value.message) < 700) == ("structured_outputs", True)
    again = StructuredOutputs(regex=f"(good|after {name})")
    assert takes(grammars.of(again).result().matcher(), vocabulary, "good")


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_hostile_is_answered(grammars: Grammars, name: str) -> None:
    began = time.monotonic()
    grammars.of(StructuredOutputs(**HARMLESS[name])).result()
    assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize(
    ("name", "why"),
    [("20,000 references in a row", "nested too deeply"), ("expressions intersected", "takes too long to compile")],
)
def test_what_the_system_ended_is_told_why(grammars: Grammars, name: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        grammars.of(StructuredOutputs(**HOSTILE[name])).result()


def test_a_refusal_is_remembered(grammars: Grammars) -> None:
    slow = StructuredOutputs(**HOSTILE["10,000 properties"])
    with pytest.raises(InvalidRequest):
        grammars.of(slow).result()
    began = time.monotonic()
    with pytest.raises(InvalidRequest):
        grammars.of(slow).result()
    assert time.monotonic() - began < 1


def test_the_same_constraint_is_compiled_once(grammars: Grammars) -> None:
    first = grammars.of(StructuredOutputs(regex="once|twice"))
    assert grammars.of(StructuredOutputs(regex="once|twice")).result() is first.result()


def test_one_in_use_outlives_the_cache_and_one_that_is_not_does_not(grammars: Grammars) -> None:
    held = grammars.of(StructuredOutputs(regex="held")).result()
    for at in range(KEPT + 4):
        grammars.of(StructuredOutputs(regex=f"other{at}")).result()
    assert grammars.of(StructuredOutputs(regex="held")).result() is held
    assert grammars.num_kept <= KEPT


def test_a_good_one_need_not_wait_for_a_hostile_one(grammars: Grammars) -> None:
    bad = grammars.of(StructuredOutputs(json=HOSTILE["40 patterns at once"]["json"], whitespace_pattern=" ?"))
    grammars.of(StructuredOutputs(regex="quick")).result()
    assert not bad.done()
    with pytest.raises(InvalidRequest, match="takes too long"):
        bad.result()


def slow(at: int) -> StructuredOutputs:
    """One that takes all the time that it gets, and differs from the others."""
    return StructuredOutputs(json=HOSTILE["40 patterns at once"]["json"], whitespace_pattern=f" {{0,{at}}}")


def test_a_quick_one_waits_for_few_of_a_crowd_of_slow_ones(grammars: Grammars) -> None:
    crowd = [grammars.of(slow(at)) for at in range(6)]
    grammars.of(StructuredOutputs(regex="quick beside a crowd")).result()
    assert sum(each.done() for each in crowd) < len(crowd) / 2
    for each in crowd:
        with pytest.raises(InvalidRequest, match="takes too long"):
            each.result()


def test_what_is_slow_beside_too_many_others_is_to_be_asked_again(vocabulary: Vocabulary) -> None:
    grammars = Grammars("llguidance", lambda: vocabulary)
    crowd = {grammars.of(slow(at)): slow(at) for at in range(2 * MOST_SLOW)}
    told = next(each for each in as_completed(crowd) if isinstance(each.exception(), Unavailable))
    assert getattr(told.exception(), "code", "") == "compiler_busy"
    assert grammars.of(crowd[told]) is not told
    grammars.close()
    assert all(each.done() for each in crowd)


def test_a_nursery_that_dies_is_replaced(vocabulary: Vocabulary) -> None:
    grammars = Grammars("llguidance", lambda: vocabulary)
    grammars.of(GOOD).result()
    os.kill(grammars.nursery_pid, signal.SIGKILL)
    answers = []
    for at in range(50):  # the first may still be told that it ended
        try:
            answers.append(grammars.of(StructuredOutputs(regex=f"after{at}")).result())
            break
        except Unavailable:
            continue
    grammars.close()
    assert answers


def test_nothing_is_left_when_it_is_closed(vocabulary: Vocabulary) -> None:
    before = set(threading.enumerate())
    grammars = Grammars("llguidance", lambda: vocabulary)
    grammars.of(GOOD).result()
    nursery = grammars.nursery_pid
    grammars.close()
    with pytest.raises(ProcessLookupError):
        os.kill(nursery, 0)
    assert {thread for thread in set(threading.enumerate()) - before if thread.name != "grammar-guard"} == set()


def test_a_backend_that_there_is_not_is_refused_at_the_start(vocabulary: Vocabulary) -> None:
    with pytest.raises(Unsupported, match="llguidance"):
        Grammars("outlines", lambda: vocabulary)
