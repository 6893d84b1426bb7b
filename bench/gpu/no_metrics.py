"""Stands in for prometheus_client on a machine that lacks it: takes every measurement and keeps none.

bench/gpu_check.sh puts it on the path under that name, says so, and never does when the real one is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CollectorRegistry:
    """Holds nothing."""

    def __init__(self, **options: object) -> None:
        """Any options will do."""


class Metric:
    """Any kind of metric, with any labels."""

    def __init__(self, *description: object, **options: object) -> None:
        """Any description will do."""

    def labels(self, *values: object) -> Metric:
        """One for all labels."""
        return self

    def inc(self, amount: float = 1) -> None:
        """Forgotten."""

    def set(self, value: float) -> None:
        """Forgotten."""

    def observe(self, value: float) -> None:
        """Forgotten."""

    @contextmanager
    def time(self) -> Iterator[None]:
        """The time is not taken."""
        yield


Counter = Gauge = Histogram = Metric


def generate_latest(registry: CollectorRegistry) -> bytes:
    """There is nothing to tell."""
    return b""
