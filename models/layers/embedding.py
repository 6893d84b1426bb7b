"""The two ends of a network: token ids to vectors, vectors to logits. Tied ends share one matrix.

Both may be stored in any format: a GGUF file's table is packed, a GPTQ checkpoint's head may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ...quant.base import LinearShape, QuantFormat
from ...quant.matrix import Matrix, PlainMatrix, Product, product_of
from ..wanted import Wanted
from .arrival import Arrival


class Embedding:
    """A table of vectors, read row by row."""

    def __init__(self, name: str, shape: LinearShape, quant: QuantFormat, device: torch.device) -> None:
        self.dtype = shape.dtype
        self.device = device
        shape = replace(shape, only_rows=True)
        self.arrival = Arrival(name, quant.linear(name, shape), shape, self._arrived)
        self._table: Tensor | None = None  # [vocab, size] where the table is plain
        self._packed: Product | None = None

    def __call__(self, tokens: Tensor) -> Tensor:
        """tokens[T] int64 -> new vectors [T, size]."""
        if self._table is not None:
            return self._table[tokens]
        assert self._packed is not None
        return self._packed.rows(tokens, self.dtype)

    def wanted(self) -> Iterator[tuple[str, Wanted]]:
        """(checkpoint name, what is wanted)."""
        return self.arrival.wanted()

    def nbytes(self) -> int:
        if self._table is not None:
            return self._table.nbytes
        return 0 if self._packed is None else self._packed.nbytes

    def _arrived(self, matrix: Matrix) -> None:
        if isinstance(matrix, PlainMatrix):
            self._table = matrix.w.to(self.device, copy=True)  # never multiplied: rows lie as they are read
        else:
            self._packed = product_of([matrix], self.device)


class Head:
    """Vectors to logits over the vocabulary, without a bias."""

    def __init__(self, name: str, shape: LinearShape, quant: QuantFormat, device: torch.device) -> None:
        self.dtype = shape.dtype
        self.device = device
        self.arrival = Arrival(name, quant.linear(name, shape), shape, self._arrived)
        self._product: Product | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """x[S, size] -> logits [S, vocab] float32."""
        assert self._product is not None
        return self._product.wide(x)

    def rows(self, tokens: Tensor) -> Tensor:
        """The head's own vectors of tokens[T], for an embedding that is tied to it: [T, size]."""
        assert self._product is not None
        return self._product.rows(tokens, self.dtype)

    def wanted(self) -> Iterator[tuple[str, Wanted]]:
        """(checkpoint name, what is wanted)."""
        return self.arrival.wanted()

    def nbytes(self) -> int:
        return 0 if self._product is None else self._product.nbytes

    def _arrived(self, matrix: Matrix) -> None:
        self._product = product_of([matrix], self.device)
