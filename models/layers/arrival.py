"""The tensors of one matrix while they arrive from the checkpoint; when the last is there, the format reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor

from ...quant.base import LinearMethod, LinearShape
from ...quant.matrix import Matrix
from ..wanted import Wanted


class Arrival:
    """Waits for what `method` wants of the matrix at module path `name`, then hands `done` the matrix, once."""

    def __init__(self, name: str, method: LinearMethod, shape: LinearShape, done: Callable[[Matrix], None]) -> None:
        self.name = name
        self.method = method
        self.shape = shape
        self._specs = method.tensors(shape)
        self._done = done
        self._raw: dict[str, Tensor] = {}

    def wanted(self) -> Iterator[tuple[str, Wanted]]:
        """(checkpoint name, what is wanted)."""
        for name, spec in self._specs.items():
            yield f"{self.name}.{name}", Wanted(spec.shape, spec.dtypes, partial(self._put, name))

    def _put(self, name: str, tensor: Tensor) -> None:
        self._raw[name] = tensor
        if len(self._raw) == len(self._specs):
            matrix = self.method.read(self._raw, self.shape)
            self._raw.clear()
            self._done(matrix)
