"""Limits in memory: nobody gets more than their minute holds, and whoever is told when to come back is let in then."""

from __future__ import annotations

import random
from typing import Any

import pytest
from aril.admin_api.keyring import Limits
from aril.admin_api.quotas import MOST_RESERVED, Quotas, Reservation, Spent
from aril.core.callers import Caller
from aril.core.errors import RateLimited, TooLarge
from aril.engine.metering import Work
from aril.engine.params import SamplingParams
from aril.lora.catalog import Resolution

CALLER = Caller(name="key_a", tenant="acme")


class World:
    """Quotas under a clock that only the test moves; `limits` are by subject."""

    def __init__(self, **of_key: int) -> None:
        self.now = 0.0
        self.limits = {"key_a": Limits(**of_key)}
        self.quotas = Quotas(lambda subject: self.limits.get(subject, Limits()), lambda: self.now)

    def ask(self, prompt: int = 10, max_tokens: int | None = 5, *, caller: Caller = CALLER, **more: Any) -> Reservation:
        """One request of `caller`."""
        params = SamplingParams(max_tokens=max_tokens, **more)
        base = Resolution(ref=None, speaker="tiny")
        return self.quotas.admit(Work(caller=caller, resolution=base, prompts=[[1] * prompt], params=[params]))

    def refused(self, **asked: int) -> RateLimited:
        """The refusal of a request that must be refused."""
        with pytest.raises(RateLimited) as refused:
            self.ask(**asked)
        return refused.value


def test_without_limits_nothing_is_counted_or_told() -> None:
    world = World()
    for _ in range(1000):
        assert world.ask().headers == {}
    assert world.quotas.spent() == {}


def test_the_request_over_the_limit_is_refused_and_told_when_to_come_back() -> None:
    world = World(requests_per_minute=3)
    for second in (0.5, 10.0, 20.0):
        world.now = second
        world.ask().settle(10)
    refused = world.refused()
    assert "the key key_a is at its limit of 3 requests per minute" in refused.message
    world.now += refused.retry_after - 0.001
    world.refused()
    world.now += 0.002
    world.ask()


@pytest.mark.parametrize("seed", range(5))
def test_no_sixty_seconds_hold_more_than_a_minute_s_limit(seed: int) -> None:
    dice, world, let_in = random.Random(seed), World(requests_per_minute=7), list[float]()
    for _ in range(2000):
        world.now += dice.choice((0.01, 0.5, 3.0, 30.0)) * dice.random()
        try:
            world.ask().settle(1)
        except RateLimited as refused:
            world.now += refused.retry_after * dice.choice((0.5, 1.0))
        else:
            let_in.append(world.now)
    most = max(sum(start <= at < start + 60 for at in let_in) for start in let_in)
    assert most == 7


@pytest.mark.parametrize("seed", range(5))
def test_whoever_comes_back_when_told_is_let_in(seed: int) -> None:
    dice, world = random.Random(seed), World(requests_per_minute=5, tokens_per_minute=100)
    for _ in range(500):
        world.now += dice.random() * 10
        prompt = dice.randrange(1, 60)
        try:
            world.ask(prompt).settle(prompt + 5)
        except RateLimited as refused:
            world.now += refused.retry_after + 1e-6
            world.ask(prompt).settle(prompt + 5)


def test_tokens_are_reserved_until_it_is_known_how_many_there_were() -> None:
    world = World(tokens_per_minute=100)
    first = world.ask(prompt=10, max_tokens=50)
    assert first.headers["x-ratelimit-remaining-tokens"] == "40"
    assert world.refused(prompt=10, max_tokens=50).headers["x-ratelimit-remaining-tokens"] == "40"
    first.settle(12)
    assert world.ask(prompt=10, max_tokens=50).headers["x-ratelimit-remaining-tokens"] == "28"


def test_an_answer_longer_than_was_reserved_is_charged_all_the_same() -> None:
    world = World(tokens_per_minute=2000)
    world.ask(prompt=10, max_tokens=None).settle(1990)
    assert "tokens per minute" in world.refused(prompt=10, max_tokens=5).message


def test_what_one_request_used_beyond_the_limit_is_paid_off_before_the_next() -> None:
    world = World(tokens_per_minute=1000)
    running = [world.ask(prompt=1, max_tokens=1, n=8) for _ in range(2)]
    running[0].settle(7_500)
    running[1].settle(500)
    for minute in range(7):
        world.now = minute * 61.0 + 60
        world.refused()
    world.now = 7 * 61.0 + 61
    assert world.ask(prompt=1, max_tokens=999)


def test_who_owes_more_than_an_hour_comes_back_after_one() -> None:
    world = World(tokens_per_minute=1)
    world.ask(prompt=1, max_tokens=None, n=128).settle(3_000_000)
    assert world.refused(prompt=1).retry_after <= 3600 + 2 * 61
    world.now = 3600 + 2 * 61
    world.ask(prompt=1)


def test_no_more_is_reserved_than_an_idle_minute_has_room_for() -> None:
    world = World(tokens_per_minute=500)
    assert world.ask(max_tokens=None, n=4).headers["x-ratelimit-remaining-tokens"] == "0"
    world = World(tokens_per_minute=10 * MOST_RESERVED)
    assert world.ask(max_tokens=None, n=4).headers["x-ratelimit-remaining-tokens"] == str(6 * MOST_RESERVED - 10)


def test_a_prompt_that_no_minute_has_room_for_is_refused_for_good() -> None:
    world = World(tokens_per_minute=100)
    with pytest.raises(TooLarge, match="the prompt has 101 tokens"):
        world.ask(prompt=101)


def test_what_is_refused_costs_nothing() -> None:
    world = World(requests_per_minute=1, tokens_per_minute=100)
    world.ask(prompt=10, max_tokens=5)
    for _ in range(50):
        world.refused()
    assert world.quotas.spent()["key_a"] == Spent(requests=1, running=1, reserved=15)


def test_what_is_refused_after_it_was_let_in_costs_nothing_whenever_that_is() -> None:
    world = World(requests_per_minute=2, tokens_per_minute=100)
    first, second = world.ask(), world.ask()
    first.give_back()
    assert world.quotas.spent()["key_a"] == Spent(requests=1, running=1, reserved=15)
    world.now += 100
    world.ask()
    second.give_back()
    assert world.quotas.spent()["key_a"] == Spent(requests=1, running=1, reserved=15)


def test_only_so_many_run_at_once() -> None:
    world = World(concurrent_requests=2)
    first, _second = world.ask(), world.ask()
    assert "2 requests at once" in world.refused().message
    first.settle(1)
    world.ask()
    first.settle(1)  # a second end of one request changes nothing
    world.refused()


def test_tenant_and_key_are_both_asked_and_the_tighter_one_is_told() -> None:
    world = World(requests_per_minute=5)
    world.limits["tenant:acme"] = Limits(requests_per_minute=7, tokens_per_minute=1000)
    other = Caller(name="key_b", tenant="acme")
    for _ in range(4):
        world.ask(caller=other)
    headers = world.ask().headers
    assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("7", "2")
    assert headers["x-ratelimit-limit-tokens"] == "1000"
    world.ask()
    world.ask()
    assert "the tenant 'acme'" in world.refused().message
    world.ask(caller=Caller(name="key_c", tenant="other"))


def test_what_a_key_spends_counts_for_its_tenant_only_if_it_is_let_in_by_both() -> None:
    world = World(requests_per_minute=1)
    world.limits["tenant:acme"] = Limits(requests_per_minute=10)
    world.ask()
    world.refused()
    assert world.quotas.spent()["tenant:acme"].requests == 1


def test_the_headers_are_openais() -> None:
    world = World(requests_per_minute=60, tokens_per_minute=1000)
    assert world.ask(prompt=10, max_tokens=5).headers == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "61.000s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "985",
        "x-ratelimit-reset-tokens": "61.000s",
    }


def test_what_was_spent_on_other_servers_counts() -> None:
    world = World(requests_per_minute=10, tokens_per_minute=1000, concurrent_requests=3)
    world.quotas.hear({"key_a": Spent(requests=8, tokens=100, running=2, reserved=50)})
    assert world.ask(prompt=10, max_tokens=5).headers["x-ratelimit-remaining-tokens"] == "835"
    assert "at once" in world.refused().message
    world.quotas.hear({"key_a": Spent(requests=9)})
    assert "requests per minute" in world.refused().message
    world.quotas.hear({})
    world.ask()


def test_what_was_heard_of_other_servers_is_believed_for_a_minute() -> None:
    world = World(requests_per_minute=10)
    world.quotas.hear({"key_a": Spent(requests=10)})
    world.now += 60
    world.refused()
    world.now += 2
    world.ask()


def test_a_limit_holds_from_the_moment_it_is_set() -> None:
    world = World()
    world.ask()
    world.limits["key_a"] = Limits(requests_per_minute=1)
    world.ask()
    world.refused()
    world.limits["key_a"] = Limits(requests_per_minute=2)
    world.ask()


def test_idle_accounts_are_forgotten() -> None:
    world = World()
    for number in range(1000):
        world.limits[f"key_{number}"] = Limits(requests_per_minute=5)
        world.ask(caller=Caller(name=f"key_{number}")).settle(3)
    assert len(world.quotas.spent()) == 1000
    world.now += 62
    world.quotas.spent()
    assert world.quotas.spent() == {}


def test_every_beam_of_a_search_is_reserved_for() -> None:
    world = World(tokens_per_minute=1000)
    asked = world.ask(prompt=10, max_tokens=20, use_beam_search=True, temperature=0.0, n=2, best_of=32)
    assert asked.headers["x-ratelimit-remaining-tokens"] == str(1000 - 10 - 32 * 20)
