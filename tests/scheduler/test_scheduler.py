"""Steps: the budget, who has a row, who gives way, and what clients hear at the end."""

from __future__ import annotations

import pytest
from aril.core.errors import Conflict, InvalidAdapter, InvalidRequest
from builders.world import EOS, World, adapter, answer, draw, fingerprints, ids

LONG = list(range(1, 31))


def first_token(prompt: list[int]) -> int:
    """What the base answers first."""
    return draw(fingerprints("", prompt)[-1], 0)


def prompt_answered_by(token: int) -> list[int]:
    """A prompt whose first answer is `token`."""
    return next([1, 2, at] for at in range(10_000) if first_token([1, 2, at]) == token)


def test_a_long_prompt_is_cut_into_chunks_of_the_budget() -> None:
    world = World(max_num_batched_tokens=8)
    world.add("a", LONG, max_tokens=1)
    world.run()
    assert [row.length for step in world.steps for row in step.rows] == [8, 8, 8, 6]


def test_a_decode_has_a_row_in_each_step_beside_a_long_prompt() -> None:
    world = World(max_num_batched_tokens=8)
    world.add("talks", [1, 2], max_tokens=6, ignore_eos=True)
    world.step()
    world.add("reads", LONG, max_tokens=1)
    for _ in range(4):
        assert ids(world.step()) == ["talks", "reads"]


def test_no_more_rows_than_allowed_are_in_a_step() -> None:
    world = World(max_num_seqs=2)
    for id in "abc":
        world.add(id, [1, 2], max_tokens=4, ignore_eos=True)
    assert ids(world.step()) == ["a", "b"]


def test_the_youngest_gives_way_when_blocks_run_out_and_gets_the_same_answer() -> None:
    world = World(num_blocks=9)
    requests = [world.add(id, LONG[:n], max_tokens=12, ignore_eos=True) for id, n in (("a", 12), ("b", 14))]
    world.run()
    assert [request.num_preemptions for request in requests] == [0, 1]
    assert [world.output(r.id) for r in requests] == [answer(r, world.max_len) for r in requests]


def test_the_less_urgent_gives_way_before_the_younger() -> None:
    world = World(num_blocks=9)
    idle = world.add("idle", LONG[:14], priority=5, max_tokens=12, ignore_eos=True)
    world.step()
    urgent = world.add("urgent", LONG[2:14], priority=0, max_tokens=12, ignore_eos=True)
    world.run()
    assert (idle.num_preemptions, urgent.num_preemptions) == (1, 0)


def test_one_request_may_fill_the_whole_cache() -> None:
    world = World(num_blocks=4, max_model_len=1000)
    world.add("a", LONG[:5], max_tokens=None, ignore_eos=True)
    world.run()
    assert len(world.output("a")) == 11  # 16 tokens of room, 5 of prompt
    assert world.last("a").finish_reason == "length"


@pytest.mark.parametrize("num_prompt", [16, 50])
def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers(num_prompt: int) -> None:
    world = World(num_blocks=4, max_model_len=1000)
    with pytest.raises(InvalidRequest, match=rf"{num_prompt} tokens, and at most 15 .* 1000 tokens .* holds 16"):
        world.add("a", [1] * num_prompt)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        World().add("a", [])


def test_an_id_in_use_is_refused_until_its_request_has_ended() -> None:
    world = World()
    world.add("a", [1, 2], n=2, max_tokens=2)
    with pytest.raises(Conflict, match="'a#1'"):
        world.add("a#1", [1])
    world.scheduler.abort("a")
    world.add("a", [1, 2], max_tokens=2)
    world.run()
    assert len(world.output("a")) > 0


@pytest.mark.parametrize("num_steps", [0, 1, 3], ids=["waiting", "mid-prompt", "decoding"])
def test_an_abort_frees_all_by_the_next_step(num_steps: int) -> None:
    world = World(max_num_batched_tokens=20)
    world.add("a", LONG, adapter("x"), n=3, max_tokens=20, ignore_eos=True)
    for _ in range(num_steps):
        world.step()
    world.scheduler.abort("a")
    world.step()
    assert world.scheduler.pool.num_free == world.scheduler.pool.num_blocks
    assert not any(world.slots.users.values())
    assert not world.device.known
    assert world.last("a").finish_reason == "abort"


def test_aborting_what_is_not_here_is_fine() -> None:
    world = World()
    world.scheduler.abort("nobody")
    assert not world.scheduler.has_work


def test_the_end_of_sequence_stops_without_a_reason_of_its_own() -> None:
    world = World()
    world.add("a", prompt_answered_by(EOS), max_tokens=5)
    world.run()
    assert (world.output("a"), world.last("a").finish_reason, world.last("a").stop_reason) == ([EOS], "stop", None)


def test_a_stop_token_is_named_as_the_reason() -> None:
    world = World()
    world.add("a", prompt_answered_by(7), max_tokens=5, stop_token_ids=(7,))
    world.run()
    assert (world.output("a"), world.last("a").finish_reason, world.last("a").stop_reason) == ([7], "stop", 7)


@pytest.mark.parametrize("params", [{"ignore_eos": True}, {"min_tokens": 2, "stop_token_ids": (EOS,)}])
def test_the_end_of_sequence_is_passed_when_asked(params: dict[str, object]) -> None:
    world = World()
    world.add("a", prompt_answered_by(EOS), max_tokens=2, **params)
    world.run()
    assert len(world.output("a")) == 2


def test_a_stop_string_found_outside_ends_one_choice_without_news() -> None:
    world = World()
    world.add("a", [1, 2, 3], n=2, max_tokens=6, ignore_eos=True)
    for _ in range(3):
        world.step()
    world.scheduler.finish("a", "stop", stop_reason="END", index=0)
    world.run()
    assert (len(world.output("a", 0)), len(world.output("a", 1))) == (3, 6)


def test_choices_share_the_blocks_of_their_prompt_and_each_gets_its_own_answer() -> None:
    world = World(num_blocks=12)
    request = world.add("a", LONG, n=4, max_tokens=3, ignore_eos=True)  # 4 x 8 blocks without sharing
    world.run()
    choices = request.choices()
    assert [world.output("a", at) for at in range(4)] == [answer(c, world.max_len) for c in choices]
    assert [world.computed(c.id) for c in choices] == [len(LONG) + 2, 3, 3, 3]


def test_choices_share_even_when_nothing_is_cached_and_the_first_ends_at_once() -> None:
    world = World(enable_prefix_caching=False)
    request = world.add("a", LONG, n=3, max_tokens=1)
    world.run()
    assert [world.computed(c.id) for c in request.choices()] == [len(LONG), 1, 1]


def test_waiting_choices_give_up_their_blocks_before_anyone_is_preempted() -> None:
    world = World(num_blocks=5, max_num_seqs=1, enable_prefix_caching=False)
    request = world.add("a", LONG[:14], n=2, max_tokens=5, ignore_eos=True)
    world.run()
    assert request.num_preemptions == 0
    assert [world.output("a", at) for at in (0, 1)] == [answer(c, world.max_len) for c in request.choices()]


def test_a_bad_adapter_fails_its_own_requests_only() -> None:
    world = World()
    world.slots.bad.add(adapter("bad").digest)
    world.add("bad", [1, 2], adapter("bad"), n=2, max_tokens=2)
    world.add("good", [1, 2], adapter("good"), max_tokens=2, ignore_eos=True)
    world.run()
    assert [type(world.last("bad", at).error) for at in (0, 1)] == [InvalidAdapter, InvalidAdapter]
    assert (world.last("bad").finish_reason, len(world.output("good"))) == ("error", 2)


def test_a_row_that_fails_ends_its_own_request_only() -> None:
    world = World()
    world.device.failing["a"] = ValueError("not finite")
    world.add("a", [1, 2], max_tokens=2)
    world.add("b", [1, 2], max_tokens=2, ignore_eos=True)
    world.run()
    assert world.last("a").error is world.device.failing["a"]
    assert len(world.output("b")) == 2


def test_a_request_without_a_free_slot_does_not_block_the_next() -> None:
    world = World(slots=1)
    world.add("a", [1, 2], adapter("a"), max_tokens=9, ignore_eos=True)
    world.add("b", [1, 2], adapter("b"), max_tokens=9, ignore_eos=True)
    world.add("c", [1, 2], max_tokens=9, ignore_eos=True)
    assert ids(world.step()) == ["a", "c"]


def test_a_steady_stream_on_one_adapter_does_not_keep_the_only_slot_for_ever() -> None:
    world = World(slots=1, max_num_seqs=2)
    stream = iter(range(10_000))
    world.add(f"s{next(stream)}", [1, 2], adapter("a"), max_tokens=3, ignore_eos=True)
    world.step()
    world.add("b", [1, 2], adapter("b"), max_tokens=3, ignore_eos=True)
    for _ in range(300):
        world.add(f"s{next(stream)}", [1, 2], adapter("a"), max_tokens=3, ignore_eos=True)
        world.step()
    assert len(world.output("b")) == 3


def test_an_adapter_that_never_comes_holds_nobody_up() -> None:
    world = World(max_num_seqs=2)
    world.slots.late.add(adapter("late").digest)
    world.add("late", [1, 2], adapter("late"), max_tokens=3)
    for at in range(120):
        world.add(f"r{at}", [1, 2], adapter("a"), max_tokens=3, ignore_eos=True)
    for _ in range(400):
        world.step()
    assert all(len(world.output(f"r{at}")) == 3 for at in range(120))


def test_a_step_without_rows_says_that_nothing_can_run_now() -> None:
    world = World()
    world.slots.late.add(adapter("late").digest)
    world.add("a", [1, 2], adapter("late"), max_tokens=1)
    assert world.step().rows == []
    world.slots.arrive(adapter("late"))
    assert ids(world.step()) == ["a"]


def test_log_probabilities_of_a_prompt_are_told_once_though_it_was_preempted_midway() -> None:
    world = World(num_blocks=12, max_num_batched_tokens=4, max_num_seqs=2)
    world.add("talks", LONG[:8], max_tokens=30, ignore_eos=True)
    for _ in range(3):
        world.step()
    reads = world.add("reads", list(range(1, 33)), max_tokens=2, ignore_eos=True, prompt_logprobs=0)
    world.run()
    assert reads.num_preemptions > 0
    told = [chunk.prompt_logprobs for chunk in world.heard["reads", 0]]
    assert [entry.token_id for entry in told[0]] == reads.prompt
    assert told[1:] == [None] * (len(told) - 1)


def test_users_of_an_adapter_are_counted_by_its_bytes_until_they_end() -> None:
    world = World()
    world.add("a", [1, 2], adapter("one", "bytes"), n=2, max_tokens=2)
    assert world.scheduler.num_users(adapter("two", "bytes")) == 2
    world.run()
    assert world.scheduler.num_users(adapter("one", "bytes")) == 0
