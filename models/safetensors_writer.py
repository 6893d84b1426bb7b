"""Safetensors files whose tensors are known before they are made: written piece by piece, none of it kept in memory.

Format: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from .safetensors_header import DTYPES, SIZE

SHARD_BYTES = 4 * 1024**3
NAMES = {dtype: name for name, dtype in DTYPES.items()}
INDEX = "model.safetensors.index.json"
Specs = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


class SafetensorsWriter:
    """model.safetensors, or shards and their index, in `folder`; as a context manager it closes the files."""

    def __init__(self, folder: Path, specs: Specs, shard_bytes: int = SHARD_BYTES) -> None:
        """`specs`: dtype and shape of every tensor by name, in the order in which shards shall take them."""
        self._files: list[BinaryIO] = []
        self._at: dict[str, tuple[BinaryIO, int]] = {}  # where a tensor's next bytes go
        self._left = {name: num_bytes(*spec) for name, spec in specs.items()}
        shards = _shards(self._left, shard_bytes)
        files = _file_names(len(shards))
        for file, names in zip(files, shards, strict=True):
            self._begin(folder / file, {name: specs[name] for name in names})
        if len(shards) > 1:
            home = {name: file for file, names in zip(files, shards, strict=True) for name in names}
            index = {"metadata": {"total_size": sum(self._left.values())}, "weight_map": home}
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")

    def __enter__(self) -> SafetensorsWriter:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        for file in self._files:
            file.close()
        assert failure is not None or not any(self._left.values()), "a tensor was not written whole"

    def append(self, name: str, part: Tensor) -> None:
        """The tensor's next rows."""
        file, at = self._at[name]
        file.seek(at)
        file.write(part.contiguous().view(-1).view(torch.uint8).numpy().data)
        self._at[name] = file, at + part.nbytes
        self._left[name] -= part.nbytes
        assert self._left[name] >= 0, name

    def _begin(self, path: Path, specs: Specs) -> None:
        """Write the header. Wider types come first, so that every tensor is aligned."""
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        starts, end = {}, 0
        for name, (dtype, shape) in sorted(specs.items(), key=lambda item: -item[1][0].itemsize):
            starts[name], end = end, end + num_bytes(dtype, shape)
            header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [starts[name], end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % SIZE.size)
        file = path.open("wb")
        self._files.append(file)
        file.write(SIZE.pack(len(text)) + text)
        self._at |= {name: (file, SIZE.size + len(text) + start) for name, start in starts.items()}


def num_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    """Of a tensor."""
    return math.prod(shape) * dtype.itemsize


def _shards(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _file_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{at + 1:05}-of-{count:05}.safetensors" for at in range(count)]
