"""What a format does to the rows before they meet a weight: nothing, or a rounding to 8 (or 4) bits.

Scales of compressed-tensors and DeepSeek's fp8; see ops/rounding.py and ops/int8.py for the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..kernels.ops.rounding import round_to_e4m3, round_to_integers


class Rounding(Protocol):
    """Rows in, rows out; equal roundings compare equal."""

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, K] -> [T, K] in x's dtype; x itself stays as it is."""

    def on(self, device: torch.device) -> Rounding:
        """The same with its numbers on `device`."""


@dataclass(frozen=True, slots=True)
class AsTheyAre:
    """No rounding: weights only are quantised (W4A16 and the like)."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def on(self, device: torch.device) -> AsTheyAre:
        return self


@dataclass(frozen=True, slots=True)
class ToE4M3:
    """To e4m3 with a scale for every `group` inputs of each row; `group` None = the whole row."""

    group: int | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return round_to_e4m3(x, self.group or x.shape[1], None)

    def on(self, device: torch.device) -> ToE4M3:
        return self


class _OneScale:
    """A scale that the checkpoint brings, as a number (what compares) and as a tensor (what kernels read)."""

    def __init__(self, value: float, device: torch.device | None = None) -> None:
        self.value = value
        self.scale = torch.tensor([value], dtype=torch.float32, device=device)


class StaticE4M3(_OneScale):
    """To e4m3 with one scale for everything."""

    def __call__(self, x: Tensor) -> Tensor:
        return round_to_e4m3(x, x.shape[1], self.scale)

    def on(self, device: torch.device) -> StaticE4M3:
        return StaticE4M3(self.value, device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticE4M3) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]  # compared, never looked up


class Static8(_OneScale):
    """To int8 with one scale and zero point for everything."""

    def __init__(self, value: float, zero: int = 0, device: torch.device | None = None) -> None:
        super().__init__(value, device)
        self.zero = zero

    def __call__(self, x: Tensor) -> Tensor:
        codes = (torch.round(x.float() / self.scale) + self.zero).clamp(-128, 127)
        return ((codes - self.zero) * self.scale).to(x.dtype)

    def on(self, device: torch.device) -> Static8:
        return Static8(self.value, self.zero, device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static8) and (other.value, other.zero) == (self.value, self.zero)

    __hash__ = None  # type: ignore[assignment]  # compared, never looked up


@dataclass(frozen=True, slots=True)
class ToIntegers:
    """To integers of `bits` bits with a scale for every `group` inputs of each row; None = the whole row."""

    bits: int
    group: int | None = None
    symmetric: bool = True

    def __call__(self, x: Tensor) -> Tensor:
        return round_to_integers(x, self.bits, self.group or x.shape[1], self.symmetric)

    def on(self, device: torch.device) -> ToIntegers:
        return self
