"""The two ends of a network: token ids to vectors, vectors to logits. Tied ends share one weight."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...kernels.ops.matmul import Weight, linear, pack, rows_of
from ..wanted import Wanted


class Embedding:
    """A table of vectors; a plain tensor, or the packed weight of the head that is tied to it."""

    def __init__(self, name: str, vocab_size: int, size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.name = name
        self.shape = (vocab_size, size)
        self.dtype = dtype
        self.device = device
        self.table: Tensor | None = None  # [vocab, size]

    def __call__(self, tokens: Tensor) -> Tensor:
        """tokens[T] int64 -> new vectors [T, size]."""
        assert self.table is not None
        return self.table[tokens]

    def wanted(self) -> Iterator[tuple[str, Wanted]]:
        """(checkpoint name, what is wanted)."""
        yield f"{self.name}.weight", Wanted(self.shape, self._put)

    def nbytes(self) -> int:
        return 0 if self.table is None else self.table.nbytes

    def _put(self, tensor: Tensor) -> None:
        self.table = torch.empty(self.shape, dtype=self.dtype, device=self.device).copy_(tensor)


class Head:
    """Vectors to logits over the vocabulary, without a bias."""

    def __init__(self, name: str, vocab_size: int, size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.name = name
        self.shape = (vocab_size, size)
        self.dtype = dtype
        self.device = device
        self.weight: Weight | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """x[S, size] -> logits [S, vocab] float32."""
        assert self.weight is not None
        return linear(x, self.weight).float()

    def rows(self, tokens: Tensor) -> Tensor:
        """The head's own vectors of tokens[T], for an embedding that is tied to it: [T, size]."""
        assert self.weight is not None
        return rows_of(self.weight, tokens)

    def wanted(self) -> Iterator[tuple[str, Wanted]]:
        """(checkpoint name, what is wanted)."""
        yield f"{self.name}.weight", Wanted(self.shape, self._put)

    def nbytes(self) -> int:
        return 0 if self.weight is None else int(self.weight.data.nbytes)

    def _put(self, tensor: Tensor) -> None:
        self.weight = pack(torch.empty(self.shape, dtype=self.dtype, device=self.device).copy_(tensor))
