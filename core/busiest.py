"""Labels for names without end: the busiest few have series of their own, the rest share one.

Memory and label sets stay as small as they were made, whatever is asked for. How busy a name is fades: it halves every
minute. A name that loses its series to a busier one loses what they counted; `rate` over all of them stays right.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics import MetricWrapperBase

LABEL = "adapter"
OTHER = "other"
LIMIT = 20
CANDIDATES = 8  # names remembered for each that may have series
HALF_LIFE = 60.0  # seconds
LEAD = 2.0  # a newcomer must be so many times as busy as the one it displaces, and more by LEAST: no flapping
LEAST = 8.0


class Busiest:
    """Owner of the question which names have series. Any thread may ask."""

    def __init__(self, limit: int = LIMIT, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._cooled = clock()
        self._heat: dict[str, float] = {}
        self._shown: set[str] = set()
        self._metrics: list[MetricWrapperBase] = []
        self._lock = threading.Lock()

    def watch(self, metric: MetricWrapperBase) -> None:
        """The series of `metric`, which has the label `adapter`, go with the names that lose theirs."""
        self._metrics.append(metric)

    def label(self, name: str) -> str:
        """What `name` is called in the label `adapter` now. While there is room, a name gets series of its own."""
        with self._lock:
            if len(self._shown) < self.limit:
                self._shown.add(name)
            return self._called(name)

    def touch(self, name: str) -> str:
        """`label`, and one more request of `name`."""
        with self._lock:
            self._cool()
            heat = self._heat[name] = self._heat.get(name, 0.0) + 1.0
            if name not in self._shown:
                self._maybe_show(name, heat)
            if len(self._heat) > CANDIDATES * self.limit:
                self._forget_coldest()
            return self._called(name)

    def _called(self, name: str) -> str:
        return name if name in self._shown else OTHER

    def _cool(self) -> None:
        now = self._clock()
        if now - self._cooled < HALF_LIFE:
            return
        share = 0.5 ** ((now - self._cooled) / HALF_LIFE)
        self._heat = {name: heat * share for name, heat in self._heat.items()}
        self._cooled = now

    def _maybe_show(self, name: str, heat: float) -> None:
        if len(self._shown) < self.limit:
            self._shown.add(name)
            return
        coldest = min(self._shown, key=self._warmth, default=None)
        if coldest is not None and heat >= LEAD * self._warmth(coldest) + LEAST:
            self._shown.remove(coldest)
            self._shown.add(name)
            for metric in self._metrics:
                metric.remove_by_labels({LABEL: coldest})

    def _warmth(self, name: str) -> float:
        return self._heat.get(name, 0.0)

    def _forget_coldest(self) -> None:
        hidden = [name for name in self._heat if name not in self._shown]
        del self._heat[min(hidden, key=self._warmth, default=next(iter(self._heat)))]
