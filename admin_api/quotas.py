"""How much may be asked for: requests and tokens in any minute, and requests at once, of a tenant and of a key.

In memory, so that asking costs no query; `Books` levels it with other servers. Tokens are reserved when a request is
let in and settled when it ends; what an answer takes beyond a minute's limit is paid off in the minutes after it. Only
what is let in counts: whoever is refused loses nothing by it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.callers import Caller
from ..core.errors import RateLimited, TooLarge
from ..core.metrics import counter
from ..engine.metering import Work
from .keyring import Limits

REFUSED = counter("requests_refused", "Requests over a limit of their tenant or key, by limit", ("limit",))
WINDOW = 61  # seconds: slices of one second, so that no 60 seconds hold more than a minute's limit
MOST_OWED = 3600  # seconds: who has run up more than an hour's limit is let off the rest
MOST_RESERVED = 1024  # tokens of one answer; many allow far longer ones than they get
WAIT = 1.0  # seconds to come back in when only the end of another request makes room


@dataclass(frozen=True, slots=True)
class Spent:
    """What a tenant or key has used of its limits on one server: in the last minute, and what runs now."""

    requests: int = 0
    tokens: int = 0
    running: int = 0
    reserved: int = 0  # tokens


@dataclass(slots=True)
class Account:
    """What one tenant or key spends here, and has spent elsewhere. Quotas alone writes it."""

    requests: int = 0  # sums of the slices
    tokens: int = 0
    running: int = 0
    reserved: int = 0
    elsewhere: Spent = Spent()
    slices: deque[list[int]] = field(default_factory=deque)  # second, requests, tokens; oldest first

    def spend(self, now: float, requests: int, tokens: int, most: int | None = None) -> list[int]:
        """Take it down for a minute; tokens beyond `most` for the minutes after it, an hour at most. Returns the slice
        that has the requests."""
        self.requests += requests
        self.tokens += tokens
        second = math.floor(now)
        if not self.slices or self.slices[-1][0] < second:
            self.slices.append([second, 0, 0])
        asked = self.slices[-1]
        asked[1] += requests
        while most is not None and tokens > (room := max(0, most - self.slices[-1][2])) and self._owes_less(now):
            self.slices[-1][2] += room
            tokens -= room
            self.slices.append([self.slices[-1][0] + WINDOW, 0, 0])
        self.slices[-1][2] += tokens
        return asked

    def give_back(self, asked: list[int]) -> None:
        """The request that was spent in the slice `asked` was refused after all."""
        asked[1] -= 1
        if any(each is asked for each in self.slices):  # else it is forgotten already
            self.requests -= 1

    def _owes_less(self, now: float) -> bool:
        return self.slices[-1][0] < now + MOST_OWED

    def forget(self, now: float) -> None:
        """Drop what is over a minute old."""
        while self.slices and now >= self.slices[0][0] + WINDOW:
            _, requests, tokens = self.slices.popleft()
            self.requests -= requests
            self.tokens -= tokens

    def spent(self) -> Spent:
        """What other servers should know."""
        return Spent(self.requests, self.tokens, self.running, self.reserved)

    def used_requests(self) -> int:
        """Of the limit for a minute, everywhere."""
        return self.requests + self.elsewhere.requests

    def used_tokens(self) -> int:
        """Of the limit for a minute, everywhere, with what is reserved."""
        return self.tokens + self.reserved + self.elsewhere.tokens + self.elsewhere.reserved

    def wait(self, now: float, at: int, excess: int) -> float:
        """Seconds until `excess` of what the slices hold at position `at` is over a minute old."""
        for each in self.slices:
            excess -= each[at]
            if excess <= 0:
                return each[0] + WINDOW - now
        return WAIT

    def reset(self, now: float) -> float:
        """Seconds until nothing that was spent here counts any more."""
        return self.slices[-1][0] + WINDOW - now if self.slices else 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A limit that leaves no room, in words, and in how many seconds it may."""

    limit: str
    words: str
    wait: float


@dataclass(frozen=True, slots=True)
class Hold:
    """One limited tenant or key as a request meets it."""

    who: str
    limits: Limits
    account: Account
    tokens: int  # to be reserved

    def refusals(self, now: float) -> Iterator[Refusal]:
        """The limits that leave no room."""
        limits, account, at_its_limit = self.limits, self.account, f"{self.who} is at its limit of"
        most, running = limits.concurrent_requests, account.running + account.elsewhere.running
        if most is not None and running >= most:
            yield Refusal("concurrent_requests", f"{at_its_limit} {most} requests at once", WAIT)
        most, asked = limits.requests_per_minute, account.used_requests() + 1
        if most is not None and asked > most:
            words = f"{at_its_limit} {most} requests per minute"
            yield Refusal("requests_per_minute", words, account.wait(now, 1, asked - most))
        most, asked = limits.tokens_per_minute, account.used_tokens() + self.tokens
        if most is not None and asked > most:
            words = f"{at_its_limit} {most} tokens per minute: {self.tokens} more are asked for"
            yield Refusal("tokens_per_minute", words, account.wait(now, 2, asked - most))


@dataclass(slots=True)
class Reservation:
    """What one request holds until it ends."""

    holds: Sequence[tuple[Hold, list[int]]]  # each with the slice that it was taken down in
    headers: Mapping[str, str]
    clock: Callable[[], float]

    def settle(self, tokens: int) -> None:
        """It has ended, after so many tokens."""
        for hold, _ in self._free():
            hold.account.spend(self.clock(), 0, tokens, hold.limits.tokens_per_minute)

    def give_back(self) -> None:
        """It was refused after all, and costs nothing."""
        for hold, asked in self._free():
            hold.account.give_back(asked)

    def _free(self) -> Sequence[tuple[Hold, list[int]]]:
        """What it held, which it does no more."""
        holds, self.holds = self.holds, ()
        for hold, _ in holds:
            hold.account.running -= 1
            hold.account.reserved -= hold.tokens
        return holds


class Quotas:
    """The accounts of all limited tenants and keys; `limits` says what holds for a subject now."""

    def __init__(self, limits: Callable[[str], Limits], clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._heard = -math.inf

    def admit(self, work: Work) -> Reservation:
        """Let `work` in. Raises RateLimited, and TooLarge for a prompt that no minute has room for."""
        now = self._clock()
        if now > self._heard + WINDOW:  # the database is away: what others had spent by then is over
            self.hear({})
        holds = list(self._holds(work, now))
        refusals = [refusal for hold in holds for refusal in hold.refusals(now)]
        if refusals:
            last = max(refusals, key=lambda refusal: refusal.wait)
            REFUSED.labels(last.limit).inc()
            message = f"{last.words}; try again in {max(1, math.ceil(last.wait))} s"
            raise RateLimited(message, retry_after=last.wait, headers=_headers(holds, now))
        taken = []
        for hold in holds:
            hold.account.running += 1
            hold.account.reserved += hold.tokens
            taken.append((hold, hold.account.spend(now, 1, 0)))
        return Reservation(taken, _headers(holds, now), self._clock)

    def spent(self) -> dict[str, Spent]:
        """What each subject has spent here; those that nothing is left of are forgotten."""
        now = self._clock()
        for account in self._accounts.values():
            account.forget(now)
        found = {subject: account.spent() for subject, account in self._accounts.items()}
        for subject, spent in found.items():
            if spent == NOTHING and self._accounts[subject].elsewhere == NOTHING:
                del self._accounts[subject]
        return found

    def hear(self, elsewhere: Mapping[str, Spent]) -> None:
        """What each subject has spent on other servers, all of them together; it holds for a minute."""
        self._heard = self._clock()
        for subject in {*elsewhere, *self._accounts}:
            self._account(subject).elsewhere = elsewhere.get(subject, NOTHING)

    def _holds(self, work: Work, now: float) -> Iterator[Hold]:
        for subject, who in _subjects(work.caller):
            limits = self._limits(subject)
            if limits != UNLIMITED:
                account = self._account(subject)
                account.forget(now)
                yield Hold(who, limits, account, _reserved(work, who, limits.tokens_per_minute))

    def _account(self, subject: str) -> Account:
        return self._accounts.setdefault(subject, Account())


UNLIMITED = Limits()
NOTHING = Spent()


def _subjects(caller: Caller) -> Iterable[tuple[str, str]]:
    return (f"tenant:{caller.tenant}", f"the tenant {caller.tenant!r}"), (caller.name, f"the key {caller.name}")


def _reserved(work: Work, who: str, limit: int | None) -> int:
    """The tokens to reserve for `work`: never more than an idle minute has room for."""
    if limit is None:
        return 0
    prompt = sum(map(len, work.prompts))
    if prompt > limit:
        message = f"the prompt has {prompt} tokens, and {who} may use {limit} in a minute: it would never have its turn"
        raise TooLarge(message, code="tokens_over_limit")
    answers = sum(_answer(params.max_tokens) * params.num_rows for params in work.params)
    return min(prompt + answers, limit)


def _answer(max_tokens: int | None) -> int:
    return MOST_RESERVED if max_tokens is None else min(max_tokens, MOST_RESERVED)


def _headers(holds: Sequence[Hold], now: float) -> dict[str, str]:
    """OpenAI's headers, each kind of limit for whoever has least left of it."""
    requests = [
        (limit - hold.account.used_requests(), limit, hold.account)
        for hold in holds
        if (limit := hold.limits.requests_per_minute) is not None
    ]
    tokens = [
        (limit - hold.account.used_tokens(), limit, hold.account)
        for hold in holds
        if (limit := hold.limits.tokens_per_minute) is not None
    ]
    found: dict[str, str] = {}
    for kind, each in (("requests", requests), ("tokens", tokens)):
        if each:
            left, limit, account = min(each, key=lambda one: one[0])
            found[f"x-ratelimit-limit-{kind}"] = str(limit)
            found[f"x-ratelimit-remaining-{kind}"] = str(max(0, left))
            found[f"x-ratelimit-reset-{kind}"] = f"{account.reset(now):.3f}s"
    return found
