"""Equal beginnings share their KV; an adapter's KV never meets another's."""

from __future__ import annotations

import pytest
from builders.world import World, adapter, answer

PROMPT = list(range(1, 17))  # 4 full blocks


def cached_after(first: object, second: object, prompt: list[int] = PROMPT, **config: object) -> int:
    """Tokens that a second request finds cached when the first had the same prompt."""
    world = World(**config)
    world.add("first", PROMPT, first, max_tokens=3, ignore_eos=True)
    world.run()
    request = world.add("second", prompt, second, max_tokens=3, ignore_eos=True)
    world.run()
    assert world.output("second") == answer(request, world.max_len)
    return request.num_cached


@pytest.mark.parametrize("ref", [None, adapter("a")], ids=["base", "adapter"])
def test_a_full_hit_leaves_the_last_token_to_compute(ref: object) -> None:
    assert cached_after(ref, ref) == 12


def test_a_longer_prompt_finds_all_full_blocks_of_its_beginning() -> None:
    assert cached_after(None, None, [*PROMPT, 30, 31]) == 16


def test_the_output_of_one_request_is_the_cached_prompt_of_the_next() -> None:
    world = World()
    first = world.add("first", PROMPT[:10], max_tokens=12, ignore_eos=True)
    world.run()
    second = world.add("second", first.token_ids(), max_tokens=1)
    world.run()
    assert second.num_cached == 20  # of 22 tokens, the last was never computed


def test_nothing_is_found_after_the_first_difference() -> None:
    assert cached_after(None, None, [*PROMPT[:5], 30, *PROMPT[6:]]) == 4


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (None, adapter("a")),
        (adapter("a"), None),
        (adapter("a"), adapter("b")),
        (adapter("a", "old"), adapter("a", "new")),
    ],
)
def test_a_prefix_never_crosses_adapters(first: object, second: object) -> None:
    assert cached_after(first, second) == 0


def test_two_names_for_the_same_bytes_share() -> None:
    assert cached_after(adapter("a", "bytes"), adapter("b", "bytes")) == 12


@pytest.mark.parametrize(("first", "second", "cached"), [("", "", 12), ("a", "a", 12), ("a", "b", 0), ("", "a", 0)])
@pytest.mark.parametrize("ref", [None, adapter("a")], ids=["base", "adapter"])
def test_a_prefix_never_crosses_salts(ref: object, first: str, second: str, cached: int) -> None:
    world = World()
    for name, salt in (("first", first), ("second", second)):
        found = world.add(name, PROMPT, ref, salt=salt, max_tokens=3, ignore_eos=True)  # type: ignore[arg-type]
        world.run()
    assert found.num_cached == cached


def test_choices_have_the_salt_of_their_request() -> None:
    world = World()
    request = world.add("one", PROMPT, salt="a", n=3, max_tokens=1)
    assert [choice.salt for choice in request.choices()] == ["a"] * 3


def test_nothing_is_cached_when_caching_is_off() -> None:
    assert cached_after(None, None, enable_prefix_caching=False) == 0


def test_a_running_request_shares_what_it_has_computed_so_far() -> None:
    world = World()
    world.add("first", PROMPT, max_tokens=20, ignore_eos=True)
    world.step()
    second = world.add("second", PROMPT, max_tokens=2)
    world.step()
    assert second.num_cached == 12


def test_what_was_not_computed_is_not_found() -> None:
    world = World(max_num_batched_tokens=8)
    world.add("first", PROMPT, max_tokens=2)
    world.step()
    world.scheduler.abort("first")
    second = world.add("second", PROMPT, max_tokens=2)
    world.run()
    assert second.num_cached == 8


def test_a_failed_row_publishes_nothing() -> None:
    world = World()
    world.device.failing["first"] = ValueError("not finite")
    world.add("first", PROMPT, max_tokens=2)
    world.run()
    second = world.add("second", PROMPT, max_tokens=2)
    world.run()
    assert second.num_cached == 0


def test_log_probabilities_of_the_prompt_are_computed_whatever_is_cached() -> None:
    world = World()
    world.add("first", PROMPT, max_tokens=2)
    world.run()
    world.add("second", PROMPT, max_tokens=2, prompt_logprobs=0)
    world.run()
    gathered = world.heard["second", 0][0].prompt_logprobs
    assert [entry.token_id for entry in gathered] == PROMPT
