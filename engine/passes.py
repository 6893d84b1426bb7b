"""One pass of the network over the rows of a step: inputs in, logits and hidden states out.

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
from .pooling import Pooled
from .sampler import Wanted
from .step import Row

Rows = Sequence[tuple[Row, RowState]]


class AdapterRows(Protocol):
    """Who knows what lies in the adapter slots."""

    def rows(self, slots: Sequence[int]) -> Any:
        """What the network needs to know of each token's slot; None when all are 0."""


@dataclass(frozen=True, slots=True)
class Passed:
    """What came of a step: the logits, and which row wants which of them; the same of hidden states."""

    logits: Tensor  # [L, vocab] float32
    wanted: Sequence[Wanted]
    hidden: Tensor | None = None  # [S, hidden], where some are to be pooled
    pooled: Sequence[Pooled] = ()


class Pass(Protocol):
    """Something that can compute a step."""

    def run(self, rows: Rows) -> Passed: ...


@dataclass(frozen=True, slots=True)
class Eager:
    """Every kernel is launched anew: any mix of rows will do."""

    network: Decoder
    backend: AttentionBackend
    caches: Sequence[LayerCache]
    packer: Packer
    adapters: AdapterRows

    def run(self, rows: Rows) -> Passed:
        inputs = self.packer.pack(rows)
        batch = self.batch(inputs, self.adapters.rows(inputs.slots.tolist()))
        if inputs.logits_at is None:
            return Passed(self.network.forward(batch), inputs.wanted)
        hidden = self.network.hidden(batch)
        return Passed(self.network.head(hidden[inputs.logits_at]), inputs.wanted, hidden, inputs.pooled)

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
