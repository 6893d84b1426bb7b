"""The header of a safetensors file, looked at before the library reads it: its size is bounded, its names differ.

The library believes a header of 100 MB, and of two tensors under one name takes the last. What the header says of
shapes and places is the library's to check. Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from .strangers import FIRST_BYTES, what_is

LENGTH = 8  # bytes in front of the header: its length, little endian
MAX_HEADER = 16 << 20  # bytes; two tensors for each of 10 thousand modules take 3 MiB


def header_problem(path: Path) -> str | None:
    """Why the file at `path` is no safetensors file to be opened."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(FIRST_BYTES)
        length = int.from_bytes(start[:LENGTH], "little")
        room = size - LENGTH
        if room < 2:
            return f"{path.name} is not a safetensors file: it has {size} bytes"
        if length > min(room, MAX_HEADER):
            bound = f"the {room} bytes of the file" if room < MAX_HEADER else f"the {MAX_HEADER} that are read"
            told = f"{path.name} is not a safetensors file: it claims a header of {length} bytes, over {bound}"
            return what_is(start, path.name) or told
        file.seek(LENGTH)
        return _told(path.name, file.read(length))


def _told(name: str, header: bytes) -> str | None:
    try:
        json.loads(header, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        return f"{name} is not a safetensors file: its header: {error}"
    return None


def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object whose keys differ: of two values under one key, readers would take different ones."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:80]!r} is there twice")
    return found
