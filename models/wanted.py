"""What a layer waits for: one tensor of the checkpoint, and where it goes. Layers declare, the loader delivers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Wanted:
    """One tensor, known to the loader by its checkpoint name."""

    shape: tuple[int, ...]  # as the checkpoint has it, before any sharding
    dtypes: tuple[torch.dtype | str, ...]  # as it may be stored
    put: Callable[[Tensor], None]  # what it keeps beyond the call, it copies
