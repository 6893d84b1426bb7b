"""Shadows: the same request once more, compared token by token, never in the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from aril.admin_api.shadows import AT_ONCE, Report, Shadows
from aril.core.callers import LOCAL
from aril.engine.metering import Outcome, Work
from aril.engine.params import SamplingParams
from aril.lora.adapter import AdapterRef
from aril.lora.catalog import Resolution
from builders.registry import Place, Registry, alive, until

PROMPT, NUM_TOKENS = list(range(3, 40)), 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


async def refs(registry: Registry, folders: list[Path]) -> tuple[AdapterRef, AdapterRef]:
    """Two adapters, loaded: the one that answers and its shadow."""
    found = []
    for name, folder in zip(("real", "shadow"), folders, strict=False):
        await registry.admin.service.upload_folder(name, folder)
        found.append(await registry.resolve(name))
    assert found[0] is not None
    assert found[1] is not None
    return found[0], found[1]


def work(real: AdapterRef, shadow: AdapterRef | None, *params: SamplingParams) -> Work:
    """One request with a prompt for each of `params`."""
    resolution = Resolution(ref=real, speaker=f"{real.name}@{real.revision}", alias="prod", shadow=shadow)
    return Work(caller=LOCAL, resolution=resolution, prompts=[PROMPT] * len(params), params=params)


async def report(shadows: Shadows, ref: AdapterRef) -> Report:
    """What has come of a shadow, once anything has."""
    await until(lambda: (found := shadows.report(ref)) is not None and found.answered + found.failed)
    found = shadows.report(ref)
    assert found is not None
    return found


@alive
async def test_a_shadow_that_says_the_same_is_equal_to_the_last_token(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        real, _ = await refs(registry, folders)
        shadows = Shadows(registry.engine, registry.admin.service.load)
        said = await registry.answer("real", NUM_TOKENS)
        shadows.ended(work(real, real, GREEDY), Outcome(outputs={(0, 0): said}))
        found = await report(shadows, real)
        assert (found.answered, found.tokens, found.equal_share) == (1, NUM_TOKENS, 1.0)


@alive
async def test_a_shadow_that_differs_is_equal_up_to_the_first_difference(
    sqlite_place: Place, folders: list[Path]
) -> None:
    async with sqlite_place.running() as registry:
        real, shadow = await refs(registry, folders)
        shadows = Shadows(registry.engine, registry.admin.service.load)
        other = await registry.answer("shadow", NUM_TOKENS)
        said = [*other[:3], (other[3] + 1) % 100, *other[4:]]
        shadows.ended(work(real, shadow, GREEDY), Outcome(outputs={(0, 0): said}))
        found = await report(shadows, shadow)
        assert (found.equal_tokens, found.compared_tokens) == (3, NUM_TOKENS)


@alive
async def test_answers_drawn_by_chance_are_not_compared(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        real, shadow = await refs(registry, folders)
        shadows = Shadows(registry.engine, registry.admin.service.load)
        drawn = SamplingParams(max_tokens=4, ignore_eos=True, n=3)
        shadows.ended(work(real, shadow, drawn), Outcome(outputs={(0, 0): [1], (0, 1): [2], (0, 2): [3]}))
        found = await report(shadows, shadow)
        assert (found.answered, found.tokens, found.equal_share) == (1, 4, None)


@alive
async def test_copies_that_would_pile_up_are_dropped_and_counted(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        real, shadow = await refs(registry, folders)
        shadows = Shadows(registry.engine, registry.admin.service.load, most_waiting=AT_ONCE + 1)
        for _ in range(10):
            shadows.ended(work(real, shadow, GREEDY), Outcome(outputs={(0, 0): [1]}))
        await until(lambda: shadows.report(shadow).answered == AT_ONCE + 1)  # type: ignore[union-attr]
        assert shadows.report(shadow).dropped == 10 - (AT_ONCE + 1)  # type: ignore[union-attr]


@alive
async def test_a_shadow_that_fails_is_counted_and_nothing_else(sqlite_place: Place, folders: list[Path]) -> None:
    async with sqlite_place.running() as registry:
        real, _ = await refs(registry, folders)
        unknown = AdapterRef("unknown", 1, "0" * 64)
        shadows = Shadows(registry.engine, registry.admin.service.load)
        shadows.ended(work(real, unknown, GREEDY), Outcome(outputs={(0, 0): [1]}))
        assert (await report(shadows, unknown)).failed == 1


@pytest.mark.parametrize("outcome", [Outcome(error="client_gone", outputs={(0, 0): [1]}), Outcome()])
@alive
async def test_what_was_not_answered_has_no_shadow(sqlite_place: Place, folders: list[Path], outcome: Outcome) -> None:
    async with sqlite_place.running() as registry:
        real, shadow = await refs(registry, folders)
        shadows = Shadows(registry.engine, registry.admin.service.load)
        shadows.ended(work(real, shadow, GREEDY), outcome)
        shadows.ended(work(real, None, GREEDY), Outcome(outputs={(0, 0): [1]}))
        assert shadows.report(shadow) is None


@pytest.mark.parametrize("beams", [{"n": 2}, {"n": 2, "best_of": 3}, {"best_of": 3}])
@alive
async def test_the_shadow_of_a_search_has_as_many_beams(
    sqlite_place: Place, folders: list[Path], beams: dict[str, int]
) -> None:
    async with sqlite_place.running() as registry:
        real, _ = await refs(registry, folders)
        shadows = Shadows(registry.engine, registry.admin.service.load)
        params = replace(GREEDY, use_beam_search=True, **beams)
        chunks = [chunk async for chunk in registry.engine.generate("real", PROMPT, params, adapter=real)]
        said = [token for chunk in chunks if chunk.index == 0 for token in chunk.token_ids]
        shadows.ended(work(real, real, params), Outcome(outputs={(0, 0): said}))
        found = await report(shadows, real)
        assert (found.failed, found.answered, found.equal_share) == (0, 1, 1.0)
