"""Tensors to safetensors files as they come: a few shards with an index, little of them in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

SHARD_BYTES = 512 * 1024**2
INDEX = "model.safetensors.index.json"


class ShardWriter:
    """The weights of one folder; as a context manager it writes what is left, and the index."""

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._waiting: dict[str, Tensor] = {}
        self._written: list[list[str]] = []  # the names in each shard
        self._total = 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            self._flush()
            self._finish()

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """More tensors; they are written when enough wait."""
        self._waiting |= tensors
        if sum(each.nbytes for each in self._waiting.values()) >= self._shard_bytes:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            save_file(self._waiting, self._part(len(self._written)), metadata={"format": "pt"})
            self._total += sum(each.nbytes for each in self._waiting.values())
            self._written.append(list(self._waiting))
            self._waiting = {}

    def _part(self, at: int) -> Path:
        return self._folder / f"part-{at}.safetensors"

    def _finish(self) -> None:
        """The names that others look for, which say how many shards there are."""
        count = len(self._written)
        if count == 1:
            self._part(0).rename(self._folder / "model.safetensors")
            return
        home: dict[str, str] = {}
        for at, names in enumerate(self._written):
            file = f"model-{at + 1:05}-of-{count:05}.safetensors"
            self._part(at).rename(self._folder / file)
            home |= dict.fromkeys(names, file)
        index = {"metadata": {"total_size": self._total}, "weight_map": home}
        (self._folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
