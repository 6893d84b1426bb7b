"""RMSNorm, alone or together with the residual sum before it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...kernels.ops.norm import add_rms_norm_, rms_norm
from ...quant.base import FLOATS
from ..wanted import Wanted


class RMSNorm:
    """x / rms(x) * weight over the last axis."""

    def __init__(self, name: str, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        self.name = name
        self.eps = eps
        self.weight = torch.empty(size, dtype=dtype, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """x[..., size] -> the same shape."""
        return rms_norm(x, self.weight, self.eps)

    def add_(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual[T, size] += x, in place; returns the norm of the sum."""
        return add_rms_norm_(x, residual, self.weight, self.eps)

    def wanted(self) -> Iterator[tuple[str, Wanted]]:
        """(checkpoint name, what is wanted)."""
        yield f"{self.name}.weight", Wanted(tuple(self.weight.shape), FLOATS, self._put)

    def nbytes(self) -> int:
        return self.weight.nbytes

    def _put(self, tensor: Tensor) -> None:
        self.weight.copy_(tensor)
