"""The gated MLP: down(silu(gate(x)) * up(x)), gate and up in one product."""

from __future__ import annotations

from torch import Tensor

from ..batch import ForwardBatch
from .linear import Linear


class GatedMLP:
    """x[T, hidden] -> [T, hidden]."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up = gate_up
        self.down = down

    def __call__(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        return self.down(self.gate_up.gated(x, batch), batch)
