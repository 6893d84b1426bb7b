"""Gated activations over a fused gate-and-up projection, rounded as transformers rounds them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.nn.functional import silu

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op


@op
def silu_mul(x: Tensor) -> Tensor:
    """silu(x[:, :I]) * x[:, I:] for `x` [T, 2 I]; the silu is rounded to x's dtype before the product. [T, I]."""
    gate, up = x.chunk(2, dim=-1)
    return silu(gate).mul_(up)


@silu_mul.cases(Tolerances())
def _cases(make: Inputs) -> Iterator[Case]:
    yield Case("one row", (make.normal(1, 32, scale=3.0),))
    yield Case("odd width", (make.normal(3, 2 * 1100, scale=3.0),))
    yield Case("Llama 8B", (make.normal(64, 2 * 14336, scale=3.0),), large=True)
