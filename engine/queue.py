"""Queue: who waits, and who is next: priority, a fair share for each owner, and of it for each adapter, then arrival.

Fairness counts computed tokens. Each owner has a meter of what it was served at a priority, and within that each of its
adapters (the base counts as one); the least served goes first. Whoever comes back starts at the clock, a virtual time
that grows by an equal share of all service: it cannot save up for later, and newcomers cannot hold back for ever those
who came before them (weighted fair queueing: Demers, Keshav and Shenker 1989; for language models: Sheng et al., OSDI
2024). A priority has clocks of its own: what others are served says nothing about those who wait behind them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from .request import BACKGROUND, Request

# So many requests with adapters may pass one whose adapter finds no room. Then they wait until it has found some: a few
# steps' worth of admissions, so that an adapter on its way from the disk (tens of milliseconds) holds nobody up.
PATIENCE = 32
BASE = ""  # stands where an adapter has its digest


class _Lane:
    """Requests of one priority, owner and adapter, in order. An empty lane is not kept."""

    def __init__(self) -> None:
        self.requests: OrderedDict[str, Request] = OrderedDict()
        self.num_passed = 0  # requests with adapters that went first because the head's adapter had no room


class _Shares:
    """What each of several was served, and which of them wait."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()
        self._meters: dict[str, float] = {}
        self._clock = 0.0

    def enter(self, name: str) -> None:
        """It waits from now on."""
        if name in self.waiting:
            return
        self._forget_old_meters()
        self._meters[name] = max(self._meters.get(name, 0.0), self._clock)
        self.waiting.add(name)

    def leave(self, name: str) -> None:
        """It waits no longer."""
        self.waiting.discard(name)

    def charge(self, name: str, num_tokens: int) -> None:
        """It was served."""
        self._meters[name] = self.meter(name) + num_tokens
        self._clock += num_tokens / max(len(self.waiting), 1)

    def meter(self, name: str) -> float:
        """What it was served; at least what the clock said when it came."""
        return self._meters.get(name, self._clock)

    def _forget_old_meters(self) -> None:
        """A meter behind the clock says nothing once its owner does not wait."""
        if len(self._meters) > 2 * len(self.waiting) + 64:
            self._meters = {k: m for k, m in self._meters.items() if m > self._clock or k in self.waiting}


_Key = tuple[int, str, str]  # of a lane: priority, owner, digest


class Queue:
    """Owner of the waiting requests and of the meters."""

    def __init__(self) -> None:
        self._lanes: dict[_Key, _Lane] = {}
        self._owners: dict[int, _Shares] = {}  # of a priority
        self._adapters: dict[tuple[int, str], _Shares] = {}  # of a priority and an owner
        self._size = 0
        self._left: list[_Lane] = []  # lanes whose head was offered last and not taken

    def __len__(self) -> int:
        return self._size

    @property
    def any_awaited(self) -> bool:
        """Whether somebody waits for any of them."""
        return any(priority < BACKGROUND for priority, *_ in self._lanes)

    def push(self, request: Request) -> None:
        """Behind the others of its lane."""
        self._open_lane(_key(request)).requests[request.id] = request
        self._size += 1

    def push_front(self, request: Request) -> None:
        """Before the others of its lane."""
        self.push(request)
        self._lanes[_key(request)].requests.move_to_end(request.id, last=False)

    def take(self, request: Request) -> None:
        """It was offered, and runs now."""
        self._lanes[_key(request)].num_passed = 0
        if request.adapter:
            for lane in self._left:
                lane.num_passed += 1
        self.remove(request)

    def remove(self, request: Request) -> None:
        """It waits no longer."""
        lane = self._lanes[_key(request)]
        del lane.requests[request.id]
        self._size -= 1
        if not lane.requests:
            self._close_lane(_key(request))

    def charge(self, request: Request, num_tokens: int) -> None:
        """Count tokens that are computed for `request` on its meters."""
        priority, owner, digest = _key(request)
        self._owners_at(priority).charge(owner, num_tokens)
        self._adapters_of(priority, owner).charge(digest, num_tokens)

    def offer(self, *, adapters_run: bool) -> Iterator[Request]:
        """The heads of the lanes, the most deserving first, and the next of a lane whose head was taken.

        A head that is not taken is passed, with its lane. But after PATIENCE of them no requests with adapters pass it
        any more while `adapters_run`, so that running ones end and make room.
        """
        ranked = [self._rank(key, lane) for key, lane in self._lanes.items()]
        heapify(ranked)
        self._left = []
        closed = False
        while ranked:
            *_, head, key, lane = heappop(ranked)
            if closed and head.adapter:
                continue
            yield head
            if head.id not in lane.requests:
                if lane.requests:
                    heappush(ranked, self._rank(key, lane))
                continue
            if not adapters_run:
                lane.num_passed = 0  # all the room there is was free: it waits for something else
            closed = closed or lane.num_passed >= PATIENCE
            self._left.append(lane)

    def _rank(self, key: _Key, lane: _Lane) -> tuple[int, float, float, int, Request, _Key, _Lane]:
        """Where the head of a lane stands; no two arrivals are equal, so nothing behind them is compared."""
        priority, owner, digest = key
        head = next(iter(lane.requests.values()))
        of_owner, of_adapter = self._owners_at(priority).meter(owner), self._adapters_of(priority, owner).meter(digest)
        return priority, of_owner, of_adapter, head.arrival, head, key, lane

    def _open_lane(self, key: _Key) -> _Lane:
        if key not in self._lanes:
            priority, owner, digest = key
            self._forget_idle_shares()
            self._owners_at(priority).enter(owner)
            self._adapters_of(priority, owner).enter(digest)
            self._lanes[key] = _Lane()
        return self._lanes[key]

    def _close_lane(self, key: _Key) -> None:
        priority, owner, digest = key
        del self._lanes[key]
        adapters = self._adapters_of(priority, owner)
        adapters.leave(digest)
        if not adapters.waiting:
            self._owners_at(priority).leave(owner)

    def _owners_at(self, priority: int) -> _Shares:
        return self._owners.setdefault(priority, _Shares())

    def _adapters_of(self, priority: int, owner: str) -> _Shares:
        return self._adapters.setdefault((priority, owner), _Shares())

    def _forget_idle_shares(self) -> None:
        """Callers choose priorities freely, and owners come and go."""
        most = 2 * len(self._lanes) + 64
        if len(self._owners) > most:
            self._owners = {at: shares for at, shares in self._owners.items() if shares.waiting}
        if len(self._adapters) > most:
            self._adapters = {at: shares for at, shares in self._adapters.items() if shares.waiting}


def _key(request: Request) -> _Key:
    return request.priority, request.owner, request.adapter.digest if request.adapter else BASE
