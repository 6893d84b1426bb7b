"""How much an adapter changes: the norm of each module's update, without ever multiplying the update out.

|s B A|_F^2 = tr((A A^T)(B^T B)) s^2, and both of those are rank by rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .validate import CheckedAdapter
from .weights import Pair

SHOWN = 3  # modules that are named, of the largest and of those without effect


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """Frobenius norms of the updates, by module path of the served base, as they are in the serving dtype."""

    norms: Mapping[str, float]

    @property
    def zero(self) -> list[str]:
        """The modules whose update is exactly nothing."""
        return [path for path, norm in self.norms.items() if norm == 0.0]

    @property
    def is_nothing(self) -> bool:
        """Whether the whole adapter adds exactly nothing."""
        return len(self.zero) == len(self.norms)

    def said(self) -> dict[str, object]:
        """For a report."""
        largest = sorted(self.norms, key=self.norms.__getitem__, reverse=True)[:SHOWN]
        return {
            "modules": len(self.norms),
            "largest": max(self.norms.values()),
            "median": statistics.median(self.norms.values()),
            "largest_at": largest,
            "without_effect": len(self.zero),
            "without_effect_at": self.zero[:SHOWN],
        }


def measure(adapter: CheckedAdapter) -> Magnitudes:
    """Read every module's numbers; those that are not finite go to the adapter's problems and count as nothing."""
    return Magnitudes({path: norm(adapter.read(path)) for path in adapter.pairs})


def norm(pair: Pair) -> float:
    """|B A|_F of a pair, the scale folded in; 0.0 exactly when the product is nothing or is not finite."""
    a, a_size = _levelled(pair.a)
    b, b_size = _levelled(pair.b)
    squared = float(((a @ a.T).double() * (b @ b.T).double()).sum())
    found = a_size * b_size * max(squared, 0.0) ** 0.5
    return found if found < float("inf") else 0.0


def _levelled(x: Tensor) -> tuple[Tensor, float]:
    """`x` in float32 with its largest number at 1, and that number, so that no square is lost or overflows."""
    size = float(x.abs().max())
    return (x.float() / size if 0.0 < size < float("inf") else torch.zeros_like(x, dtype=torch.float32)), size
