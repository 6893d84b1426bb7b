"""Metrics on prometheus_client, in one registry of ours. Each metric is named once, in the file that owns the fact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .busiest import LABEL, Busiest

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

REGISTRY = CollectorRegistry(auto_describe=True)
PREFIX = "aril_"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ADAPTERS = Busiest()  # which adapters have series of their own; `limit` is set at wiring


def counter(name: str, about: str, labels: Sequence[str] = ()) -> Counter:
    """A count that only grows; served as `aril_<name>_total`."""
    return Counter(PREFIX + name, about, labels, registry=REGISTRY)


def gauge(name: str, about: str, labels: Sequence[str] = ()) -> Gauge:
    """A value that moves both ways; served as `aril_<name>`."""
    return Gauge(PREFIX + name, about, labels, registry=REGISTRY)


def histogram(name: str, about: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS) -> Histogram:
    """A distribution, in seconds unless the name says otherwise."""
    return Histogram(PREFIX + name, about, labels, registry=REGISTRY, buckets=buckets)


def adapter_counter(name: str, about: str, labels: Sequence[str] = ()) -> Counter:
    """A `counter` with the label `adapter` first, to be filled with what ADAPTERS says."""
    made = counter(name, about, (LABEL, *labels))
    ADAPTERS.watch(made)
    return made


def adapter_histogram(name: str, about: str, buckets: Sequence[float] = SECONDS) -> Histogram:
    """A `histogram` with the label `adapter`, to be filled with what ADAPTERS says."""
    made = histogram(name, about, (LABEL,), buckets)
    ADAPTERS.watch(made)
    return made


def render(*more: Collector) -> bytes:
    """All metrics in the Prometheus text format, and what `more` collect."""
    beside = CollectorRegistry(auto_describe=False)
    for collector in more:
        beside.register(collector)
    return generate_latest(REGISTRY) + generate_latest(beside)
