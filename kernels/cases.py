"""What an op's file says for the conformance test: inputs on which every provider must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How far a provider may stand from the reference, relative and absolute alike, by the dtype of the result.

    The half types allow one unit in the last place (and Triton's interpreter truncates bfloat16 instead of rounding).
    Integers are always exact.
    """

    float32: float = 1e-5
    float16: float = 2e-3
    bfloat16: float = 1.6e-2

    def of(self, dtype: torch.dtype) -> float:
        """The tolerance for results of `dtype`."""
        by_dtype = {torch.float32: self.float32, torch.float16: self.float16, torch.bfloat16: self.bfloat16}
        return by_dtype.get(dtype, 0.0)


@dataclass(frozen=True, slots=True)
class Case:
    """One call. What it returns and every tensor in `args` afterwards is compared with the reference's."""

    label: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    untouched: Sequence[int] = ()  # rows of the first argument that must keep their bits
    large: bool = False  # of serving size: too slow for an interpreter; what a compile test compiles


class Inputs:
    """Random tensors on one device, in one dtype; the same seed draws the same numbers on every device."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = device
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        """Normal numbers in the case's dtype, or in `dtype`."""
        drawn = torch.randn(shape, generator=self._generator) * scale
        return drawn.to(self.device, dtype or self.dtype)

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Integers in 0 .. high - 1."""
        return torch.randint(high, shape, generator=self._generator).to(self.device, dtype)

    def permutation(self, n: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """The integers 0 .. n - 1 in random order: distinct cache slots, blocks and the like."""
        return torch.randperm(n, generator=self._generator).to(self.device, dtype)

    def put(self, values: Sequence[Any], dtype: torch.dtype) -> Tensor:
        """Given numbers as a tensor on the device."""
        return torch.tensor(values, dtype=dtype, device=self.device)


CaseMaker = Callable[[Inputs], Iterator[Case]]
