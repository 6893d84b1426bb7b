"""Root-mean-square norms, rounded as transformers rounds them: normalise in float32, round, then times the weight."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..cases import Case, Inputs, Tolerances
from ..dispatch import op


@op
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last axis of `x` [..., H]; `weight` [H]; the result has x's shape and dtype."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


@op
def add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place, then rms_norm of it. `x` and `residual` [T, H] share a dtype."""
    residual += x
    return rms_norm.reference(residual, weight, eps)


@rms_norm.cases(Tolerances())
def _rms_norm_cases(make: Inputs) -> Iterator[Case]:
    for *shape, size in ((1, 64), (3, 576), (2, 3, 40), (64, 4096)):
        yield Case(f"{shape} {size}", (make.normal(*shape, size), make.normal(size), 1e-5), large=size == 4096)


@add_rms_norm_.cases(Tolerances())
def _add_rms_norm_cases(make: Inputs) -> Iterator[Case]:
    for rows, size in ((1, 64), (3, 576), (64, 4096)):
        args = (make.normal(rows, size), make.normal(rows, size), make.normal(size), 1e-6)
        yield Case(f"{rows} {size}", args, large=size == 4096)
