"""What a caller sees of a pooled vector: how much of it, and how long. pooling.py makes it. Knows no network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.errors import InvalidRequest
from .request import Vector


def sizes_of(config: Any, hidden_size: int) -> Sequence[int]:
    """The dimensions that embeddings of this model may have: its own, and fewer where its config says that it was
    trained for that (`is_matryoshka`, `matryoshka_dimensions`)."""
    listed = getattr(config, "matryoshka_dimensions", None)
    if listed:
        return sorted({size for size in listed if 0 < size < hidden_size} | {hidden_size})
    if getattr(config, "is_matryoshka", False):
        return range(1, hidden_size + 1)
    return (hidden_size,)


def check_dimensions(dimensions: int | None, sizes: Sequence[int]) -> None:
    """Raises InvalidRequest for dimensions that embeddings of this model cannot have."""
    if dimensions is None or dimensions in sizes:
        return
    if len(sizes) == 1:
        words = f"this model embeds in {sizes[0]} dimensions, and its config does not say that fewer mean anything"
    elif isinstance(sizes, range):
        words = f"it goes from 1 to {sizes[-1]}"
    else:
        words = f"there are {', '.join(map(str, sizes))}"
    raise InvalidRequest(f"dimensions={dimensions}: {words}", param="dimensions")


def shaped(vector: Vector, *, dimensions: int | None = None, normalize: bool = True) -> Vector:
    """The first `dimensions` of a vector (None: all of it), at length one when `normalize`d."""
    cut = vector[:dimensions]
    length = float(np.linalg.norm(cut.astype(np.float64)))
    return (cut / length).astype(np.float32) if normalize and length > 0 else cut
