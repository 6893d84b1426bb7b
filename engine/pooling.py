"""Hidden states to one vector for each prompt that is to be embedded: its last token's, or the mean over all of them.

A prompt may come in several chunks, so sums are kept here until its last token has been computed. They are in float32,
whatever the network computes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..core.errors import ArilError
from .step import NOTHING, Sampled

NOT_FINITE = "output_not_finite"  # code of a request's error, as the sampler's


@dataclass(frozen=True, slots=True)
class Pooled:
    """What one row wants of the hidden states of this step."""

    id: str
    begin: int  # rows of the hidden states: begin .. end
    end: int
    num_tokens: int  # that the vector is the mean of, in all chunks
    is_last: bool  # whether the row ends the prompt


class Pooler:
    """Owner of the sums of prompts that have not come to their end."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def forget(self, request_id: str) -> None:
        """Drop all that is known of a request."""
        self._sums.pop(request_id, None)

    def pool(self, hidden: Tensor, wanted: Sequence[Pooled]) -> dict[str, Sampled]:
        """The answer of every row of `wanted`, of `hidden` [S, hidden size]: nothing yet, or the vector."""
        return {row.id: self._take(hidden, row) for row in wanted}

    def _take(self, hidden: Tensor, row: Pooled) -> Sampled:
        total = hidden[row.begin : row.end].float().sum(0)
        if (before := self._sums.pop(row.id, None)) is not None:
            total = total + before
        if not row.is_last:
            self._sums[row.id] = total
            return NOTHING
        vector = (total / row.num_tokens).cpu().numpy()
        if not np.isfinite(vector).all():
            return Sampled([], error=ArilError("the model's output for this request is not finite", code=NOT_FINITE))
        return Sampled([], embedding=vector)
