"""One pass of the network over the rows of a step: inputs in, logits out.

Two kinds of pass answer to one name: Eager here, and Graphed in graphs.py, which replays what Eager did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..models.attention.base import AttentionBackend
from ..models.base import Decoder
from ..models.batch import ForwardBatch, LayerCache
from .inputs import Inputs, Packer, RowState
from .sampler import Wanted
from .step import Row

Rows = Sequence[tuple[Row, RowState]]


class AdapterRows(Protocol):
    """Who knows what lies in the adapter slots."""

    def rows(self, slots: Sequence[int]) -> Any:
        """What the network needs to know of each token's slot; None when all are 0."""


class Pass(Protocol):
    """Something that can compute the logits of a step."""

    def logits(self, rows: Rows) -> tuple[Tensor, list[Wanted]]:
        """Logits [S, vocab] float32, and which row wants which of them."""


@dataclass(frozen=True, slots=True)
class Eager:
    """Every kernel is launched anew: any mix of rows will do."""

    network: Decoder
    backend: AttentionBackend
    caches: Sequence[LayerCache]
    packer: Packer
    adapters: AdapterRows

    def logits(self, rows: Rows) -> tuple[Tensor, list[Wanted]]:
        inputs = self.packer.pack(rows)
        return self.network.forward(self.batch(inputs, self.adapters.rows(inputs.slots.tolist()))), inputs.wanted

    def batch(self, inputs: Inputs, rows: Any) -> ForwardBatch:
        """The argument of forward."""
        plan = self.backend.plan(inputs.ragged, self.network.attention_specs[0])
        return ForwardBatch(
            tokens=inputs.tokens,
            positions=inputs.positions,
            ragged=inputs.ragged,
            rows=rows,
            sample_at=inputs.sample_at,
            caches=self.caches,
            plan=plan,
            backend=self.backend,
        )
