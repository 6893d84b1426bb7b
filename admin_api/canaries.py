"""Canaries: whether a revision that an alias has begun to send requests to does well, and the way back if not.

Watched are the revisions to which the alias's last move sends a larger share than the one before it did: going back
would help only there. Not watched are those that such a move returned to. Each server judges by the requests that it
answered itself, over a sliding window; the rollback holds for the version of the alias that was judged, so that of
several servers one rolls back, and once.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..core.errors import ArilError, InvalidRequest, Stale
from ..core.log import event, get_logger
from ..core.metrics import ADAPTERS, adapter_counter
from ..engine.metering import Outcome, Work
from ..lora.catalog import Resolution
from .tasks import Tasks

ROLLBACKS = adapter_counter("canary_rollbacks", "Aliases that this server took back by itself")
MOST_KEPT = 2000  # requests of one window; of more, the newest are judged
MOST_WINDOWS = 1000  # revisions behind aliases, of those that were asked last
LARGE = 200  # of a window larger than this, not every request has it judged
MOST_SECONDS = 7 * 86400  # of a window, or of an answer
FIELDS = ("max_error_rate", "max_p95_seconds", "window_seconds", "min_requests")

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a revision may do to requests before it is taken back. None: that is not looked at."""

    max_error_rate: float | None = None  # of 1
    max_p95_seconds: float | None = None
    window_seconds: float = 300.0
    min_requests: int = 20

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Bounds:
        """The bounds that a caller asks for; raises InvalidRequest."""
        for name, value in said.items():
            if name not in FIELDS:
                raise InvalidRequest(f"bounds: no {name[:64]!r}; there are {', '.join(FIELDS)}", param=f"bounds.{name}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_SECONDS:
                raise InvalidRequest(f"bounds: {name} takes a number from 0 to {MOST_SECONDS}", param=f"bounds.{name}")
        if not isinstance(said.get("min_requests", 1), int):
            raise InvalidRequest("bounds: min_requests is a whole number", param="bounds.min_requests")
        bounds = cls(**said)
        if bounds.max_error_rate is None and bounds.max_p95_seconds is None:
            raise InvalidRequest("bounds: give max_error_rate, max_p95_seconds or both", param="bounds")
        if (bounds.max_error_rate or 0) > 1:
            raise InvalidRequest("bounds: max_error_rate is a share, 1 at most", param="bounds.max_error_rate")
        if bounds.window_seconds <= 0 or bounds.min_requests < 1 or bounds.min_requests > MOST_KEPT:
            raise InvalidRequest(
                f"bounds: window_seconds is over 0, and min_requests from 1 to {MOST_KEPT}", param="bounds"
            )
        return bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What an alias wants watched: its newer revisions, from this version of it on."""

    bounds: Bounds
    version: int
    revisions: frozenset[int]

    @classmethod
    def of(
        cls,
        bounds: Mapping[str, Any] | None,
        version: int,
        weights: Mapping[str, int],
        history: Sequence[Mapping[str, int]],
    ) -> Watch | None:
        """What a row asks for; None when there are no bounds, or nothing to go back to."""
        risen = _risen(weights, history)
        return cls(bounds=Bounds.of(bounds), version=version, revisions=risen) if bounds and risen else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How a revision has done lately."""

    requests: int
    errors: int
    p95_seconds: float | None  # of those that were answered

    def breaks(self, bounds: Bounds) -> str | None:
        """Which bound it crosses, and by what."""
        if self.requests < bounds.min_requests:
            return None
        rate = self.errors / self.requests
        if bounds.max_error_rate is not None and rate > bounds.max_error_rate:
            return f"{self.errors} of {self.requests} requests failed, more than {bounds.max_error_rate:g}"
        p95, most = self.p95_seconds, bounds.max_p95_seconds
        if most is not None and p95 is not None and p95 > most:
            return f"95% of {self.requests} requests took up to {p95:.3f} s, more than {most:g} s"
        return None


@dataclass(slots=True)
class Window:
    """The last requests to one revision through one version of an alias."""

    version: int
    ended: deque[tuple[float, float | None]] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    num_added: int = 0
    is_over: bool = False  # a rollback was asked for

    def add(self, now: float, seconds: float | None) -> None:
        """One more; None for one that failed."""
        self.ended.append((now, seconds))
        self.num_added += 1

    @property
    def is_due(self) -> bool:
        """Whether to judge now: sorting a large window takes a while."""
        return self.num_added % (1 + len(self.ended) // LARGE) == 0

    def finding(self, now: float, window_seconds: float) -> Finding:
        """What those that are not too old say."""
        while self.ended and self.ended[0][0] < now - window_seconds:
            self.ended.popleft()
        answered = sorted(seconds for _, seconds in self.ended if seconds is not None)
        p95 = answered[max(0, -(-95 * len(answered) // 100) - 1)] if answered else None
        return Finding(requests=len(self.ended), errors=len(self.ended) - len(answered), p95_seconds=p95)


class Aliases(Protocol):
    """Who knows the aliases and can take one back."""

    def watch(self, tenant: str, name: str, alias: str) -> Watch | None:
        """What to watch of it now; costs nothing."""

    async def take_back(self, tenant: str, name: str, alias: str, *, version: int, why: Mapping[str, Any]) -> None:
        """Roll the alias back, if it still has that version; raises Stale when not."""


_Key = tuple[str, str, str, int]  # tenant, adapter, alias, revision


class Canaries:
    """Implements engine.metering.Observer. Owner of the windows."""

    def __init__(self, aliases: Aliases, clock: Callable[[], float] = time.monotonic) -> None:
        self._aliases = aliases
        self._clock = clock
        self._windows: OrderedDict[_Key, Window] = OrderedDict()
        self._tasks = Tasks()

    def ended(self, work: Work, outcome: Outcome) -> None:
        """Take it down and judge, if its alias wants that. What is the caller's own fault does not count."""
        if outcome.error is None or outcome.fault:
            self._take(work.resolution, None if outcome.fault else outcome.seconds)

    def failed(self, resolution: Resolution) -> None:
        """A request could not even begin, as its revision could not be loaded."""
        self._take(resolution, None)

    def finding(self, tenant: str, name: str, alias: str, revision: int) -> Finding | None:
        """How a watched revision has done lately, on this server."""
        watch, window = self._aliases.watch(tenant, name, alias), self._windows.get((tenant, name, alias, revision))
        if watch is None or window is None or window.version != watch.version:
            return None
        return window.finding(self._clock(), watch.bounds.window_seconds)

    def close(self) -> None:
        """Ask for no more rollbacks."""
        self._tasks.cancel()

    def _take(self, found: Resolution, seconds: float | None) -> None:
        if found.ref is None or found.alias is None:
            return
        watch = self._aliases.watch(found.owner, found.ref.name, found.alias)
        if watch is None or found.ref.revision not in watch.revisions:
            return
        key = (found.owner, found.ref.name, found.alias, found.ref.revision)
        window, now = self._window(key, watch.version), self._clock()
        window.add(now, seconds)
        if not window.is_over and window.is_due:
            self._judge(key, window, watch, now)

    def _window(self, key: _Key, version: int) -> Window:
        window = self._windows.get(key)
        if window is None or window.version != version:
            window = self._windows[key] = Window(version)
        self._windows.move_to_end(key)
        if len(self._windows) > MOST_WINDOWS:
            self._windows.popitem(last=False)
        return window

    def _judge(self, key: _Key, window: Window, watch: Watch, now: float) -> None:
        finding = window.finding(now, watch.bounds.window_seconds)
        reason = finding.breaks(watch.bounds)
        if reason is not None:
            window.is_over = True
            self._tasks.start(self._take_back(key, window, finding, reason))

    async def _take_back(self, key: _Key, window: Window, finding: Finding, reason: str) -> None:
        tenant, name, alias, revision = key
        why = {"revision": revision, "reason": reason, "requests": finding.requests, "errors": finding.errors}
        try:
            await self._aliases.take_back(
                tenant, name, alias, version=window.version, why={**why, "p95_seconds": finding.p95_seconds}
            )
        except Stale:
            return  # somebody was quicker
        except ArilError as error:
            window.is_over = False  # the next request asks again
            log.error(event("rollback_failed", adapter=name, alias=alias, revision=revision, error=error))
        else:
            ROLLBACKS.labels(ADAPTERS.label(name)).inc()
            log.warning(event("rolled_back", adapter=name, alias=alias, revision=revision, reason=reason))


def _risen(weights: Mapping[str, int], history: Sequence[Mapping[str, int]]) -> frozenset[int]:
    """The revisions whose share has grown, without those that take back what a newer one has lost again."""
    if not history:
        return frozenset()
    now, then = _shares(weights), _shares(history[-1])
    risen = {number for number, share in now.items() if share > then.get(number, 0.0)}
    fallen = {number for number, share in then.items() if share > now.get(number, 0.0)}
    is_return = dict(weights) in [dict(earlier) for earlier in history]
    return frozenset(number for number in risen if not is_return or any(number > other for other in fallen))


def _shares(weights: Mapping[str, int]) -> dict[int, float]:
    total = sum(weights.values())
    return {int(number): weight / total for number, weight in weights.items()}
