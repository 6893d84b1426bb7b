"""How the ranks of one network meet. With one rank there is nothing to cut and nothing to sum.

Layers are given a `Ranks` and never count ranks themselves, so a network is written once for any number of them.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """The ranks that hold one network between them, as one of them sees it."""

    def shard(self, tensor: Tensor, axis: int | None) -> Tensor:
        """This rank's share of a checkpoint tensor along `axis`; all of it where axis is None."""

    def reduce(self, y: Tensor) -> Tensor:
        """The sum of every rank's partial result."""


class OneRank:
    """The whole network on one device."""

    def shard(self, tensor: Tensor, axis: int | None) -> Tensor:
        return tensor

    def reduce(self, y: Tensor) -> Tensor:
        return y
