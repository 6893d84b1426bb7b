"""Memory of a process and of those it started, as Linux counts it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..loading import Resident


def resident(pid: int) -> int:
    """Bytes in memory: the own pages of all, and the mapped files of the one that maps most, as they map the same."""
    each = [Resident.of(one) for one in family(pid)]
    return sum(one.own for one in each) + max(one.mapped for one in each)


def in_large_pages(pid: int) -> int:
    """Bytes in memory of what large pages were asked for: of Aril, weights and KV cache, also what it fetched ahead."""
    return sum(_advised(Path(f"/proc/{one}/smaps").read_text().splitlines()) for one in family(pid))


def _advised(lines: Iterable[str]) -> int:
    """Of the mappings that `lines` list one after the other."""
    found, size = 0, 0
    for line in lines:
        name, _, value = line.partition(":")
        if name == "Rss":
            size = int(value.split()[0]) * 1024
        elif name == "VmFlags" and "hg" in value.split():  # the last line of each
            found += size
    return found


def family(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found
