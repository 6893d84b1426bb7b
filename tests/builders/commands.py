"""What the tests of the command line share: a model and an adapter on disk, and flags that keep a server small."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SMALL = ("--kv-cache-memory", "4MiB", "--adapter-memory", "4MiB", "--max-model-len", "128", "--threads", "1")


@dataclass(frozen=True, slots=True)
class Files:
    """What lies on disk."""

    model: Path
    adapter: Path
    flags: tuple[str, ...] = ()  # of the server
