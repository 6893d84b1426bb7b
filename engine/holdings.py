"""Holdings: what each living request holds, and how it gets and loses it: its turn, its blocks, its adapter slot.

A request waits (in the queue, or unborn until a sibling has computed the prompt they share) or runs. One that runs
holds blocks for all its tokens and a slot; one that waits holds nothing, save a forked sibling, whose blocks may be
dropped. One that has nothing to compute waits for its siblings (see branches.py), running or parked as if unborn.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core import metrics
from ..lora.adapter import AdapterRef
from .kv.cache import Growth, KVTables
from .queue import Queue
from .request import Request, Status
from .roster import Roster
from .stop import Ending

NO_ADAPTER = 0  # the slot that adds nothing

PREEMPTIONS = metrics.counter("preemptions", "Requests that gave their blocks back and waited again")
PROMPT_TOKENS = metrics.counter("prompt_tokens", "Prompt tokens of requests that started")
CACHED_TOKENS = metrics.counter("prefix_cache_hit_tokens", "Prompt tokens whose KV was there already")
ENDED = metrics.counter("requests_ended", "Requests that ended, by reason", ["reason"])
for _reason in ("stop", "length", "abort", "error"):
    ENDED.labels(_reason)  # dashboards want to see the zero


class Adapters(Protocol):
    """Where adapters live on the device, as a scheduler sees it."""

    def prefetch(self, ref: AdapterRef) -> None:
        """Bring the bytes near, soon. Never waits, never raises: `acquire` tells what was wrong."""

    def acquire(self, ref: AdapterRef) -> int | None:
        """The slot, for one more user; None = not now, and it sees to its bytes. Raises when it can never be had."""

    def release(self, ref: AdapterRef) -> None:
        """One user less."""

    def take_loads(self) -> Sequence[tuple[int, AdapterRef]]:
        """What must be put into slots before the next pass."""


@dataclass(frozen=True, slots=True)
class Heir:
    """A row that goes on from what `parent` has computed, by `token`."""

    child: Request
    parent: Request
    token: int
    drawn: int | None  # the token that the device believes `child` to go on by; None: another's


class Holdings:
    """Owner of the running list, and the one who moves requests between it, the queue and their end."""

    def __init__(self, roster: Roster, queue: Queue, tables: KVTables, adapters: Adapters) -> None:
        self.running: list[Request] = []  # the most senior first
        self._roster = roster
        self._queue = queue
        self._tables = tables
        self._adapters = adapters
        self._forked: dict[str, Request] = {}  # siblings in the queue that hold blocks already
        self._gone: list[str] = []
        self._changed: set[str] = set()  # running ones that the runner has to meet anew

    def enter(self, choices: list[Request]) -> None:
        """A new request: its first choice waits in the queue, its others for the first."""
        self._roster.add(choices)
        self._queue.push(choices[0])

    def acquire_slot(self, request: Request) -> int | None:
        """The slot of its adapter; None = not now. Raises when its adapter can never run."""
        return self._adapters.acquire(request.adapter) if request.adapter else NO_ADAPTER

    def release_slot(self, request: Request) -> None:
        """Its adapter has one user less."""
        if request.adapter:
            self._adapters.release(request.adapter)

    def acquire_blocks(self, request: Request) -> bool:
        """Whether all its tokens have blocks now; each running request keeps one to grow into."""
        reuse = not request.needs_whole_prompt
        cached = self._tables.admit(request, spare=len(self.running), reuse=reuse)
        if cached is None and self._forked and not self.running:
            self._drop_forks()
            cached = self._tables.admit(request, spare=0, reuse=reuse)
        if cached is not None:
            request.num_computed = cached
        return cached is not None

    def start(self, request: Request, slot: int) -> None:
        """It has its slot and its blocks: it runs."""
        request.slot = slot
        self._queue.take(request)
        self._forked.pop(request.id, None)
        request.status = Status.RUNNING
        insort(self.running, request, key=_seniority)
        if not request.num_preemptions:
            request.num_cached = request.num_computed
            PROMPT_TOKENS.inc(len(request.prompt))
            CACHED_TOKENS.inc(request.num_cached)

    def make_room(self, request: Request) -> Growth | None:
        """Blocks for all its tokens, if need be those of its juniors; None when it had to give up its own."""
        while (growth := self._tables.grow(request)) is None:
            if self._forked:
                self._drop_forks()
                continue
            junior = self.running[-1]
            self._preempt(junior)
            if junior is request:
                return None
        return growth

    def give_way(self) -> None:
        """Background work gives everything back when others wait: what they need may be what it holds."""
        while self.running and self.running[-1].is_background and self._queue.any_awaited:
            self._preempt(self.running[-1])

    def bear_siblings(self, request: Request) -> None:
        """Those that waited for this prompt share its blocks, and are next in their lane."""
        for sibling in reversed(self._roster.bear(request)):
            self._tables.fork(request, sibling)
            self._forked[sibling.id] = sibling
            self._queue.push_front(sibling)

    def branch(self, heirs: Sequence[Heir], without: Sequence[Request]) -> None:
        """Every heir goes on from its parent, which may be another's too; those `without` a text wait for one."""
        past = [(list(heir.parent.output), heir.parent.num_computed, list(heir.parent.block_keys)) for heir in heirs]
        held = self._tables.branch([(heir.child, heir.parent) for heir in heirs], without)
        for heir, (output, num_computed, block_keys) in zip(heirs, past, strict=True):
            child = heir.child
            child.output, child.block_keys = [*output, heir.token], block_keys
            child.num_computed = num_computed if child.id in held else 0
            if child.status is Status.RUNNING and child.id in held:
                if heir.drawn != heir.token:
                    self._change(child)
                continue
            self._wait_again(child)
            child.num_preemptions += 1  # its prompt has been counted
            if child.id in held:
                self._forked[child.id] = child
            self._queue.push_front(child)
        for request in without:
            self._wait_again(request)
            self._roster.park(request)

    def step_aside(self) -> bool:
        """Whether a row that only waits for its siblings has given its place and its blocks to others."""
        for request in reversed(self.running):
            if request.num_missing == 0 and len(self._queue):
                self._preempt(request)
                return True
        return False

    def take_changed(self, request: Request) -> bool:
        """Whether the runner has to meet a running request anew; asked once."""
        if request.id not in self._changed:
            return False
        self._changed.discard(request.id)
        return True

    def end(self, request: Request, ending: Ending) -> None:
        """Nothing is held for it any more, and no sibling waits for it."""
        self.drop(request)
        request.finish_reason, request.stop_reason = ending.reason, ending.stop_reason
        ENDED.labels(ending.reason).inc()

    def drop(self, request: Request) -> None:
        """`end` of one that nobody hears of."""
        if request.status is Status.RUNNING:
            self._leave_running(request)
        elif not self._roster.is_unborn(request):
            self._queue.remove(request)
            self._forked.pop(request.id, None)
        for sibling in reversed(self._roster.bear(request)):
            if sibling is not request:
                self._queue.push_front(sibling)
        self._tables.free(request)
        self._roster.remove(request)
        request.status = Status.FINISHED

    @property
    def any_gone(self) -> bool:
        """Whether the runner has anything to forget."""
        return bool(self._gone)

    def take_gone(self) -> list[str]:
        """Ids that run no longer since the last time."""
        gone, self._gone = self._gone, []
        return gone

    def _preempt(self, request: Request) -> None:
        """It gives everything back and computes its tokens again later, if it is still to go on from them."""
        waits = request.num_missing == 0  # for its siblings
        self._leave_running(request)
        self._tables.free(request)
        request.status = Status.WAITING
        request.num_computed = 0
        request.num_preemptions += 1
        request.prompt_logprobs, request.prompt_logits = [], []
        if waits:
            self._roster.park(request)
        else:
            self._queue.push_front(request)
        PREEMPTIONS.inc()

    def _leave_running(self, request: Request) -> None:
        self.running.remove(request)
        self.release_slot(request)
        if not self.take_changed(request):  # else the runner has forgotten it already
            self._gone.append(request.id)

    def _change(self, request: Request) -> None:
        if request.id not in self._changed:
            self._changed.add(request.id)
            self._gone.append(request.id)

    def _wait_again(self, request: Request) -> None:
        """Neither running nor parked, nor in the queue yet."""
        if request.status is Status.RUNNING:
            self._leave_running(request)
            request.status = Status.WAITING
        else:
            self._roster.unpark(request)

    def _drop_forks(self) -> None:
        """Waiting siblings give up the blocks they were given; they compute them again, or find them cached."""
        for request in self._forked.values():
            self._tables.free(request)
            request.num_computed = 0
        self._forked.clear()


def _seniority(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival
