"""Weights in codes, still unpacked: joined where they are of one kind, moved to where they will be multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..kernels.ops.grouped import GroupedWeight, Groups


def joined(weights: Sequence[GroupedWeight]) -> GroupedWeight | None:
    """One weight with the outputs of all, one after the other; None when they are not of one kind."""
    first = weights[0]
    if any(_kind(weight) != _kind(first) or not _same_lookups(weight, first) for weight in weights):
        return None
    zeros = first.zeros
    if isinstance(zeros, Tensor):
        zeros = torch.cat([weight.zeros for weight in weights if isinstance(weight.zeros, Tensor)], dim=1)
    mins = [weight.mins for weight in weights if weight.mins is not None]
    return replace(
        first,
        planes=(_cat_codes([weight.planes[0] for weight in weights]),),
        n=sum(weight.n for weight in weights),
        scales=_cat([weight.scales for weight in weights]),
        zeros=zeros,
        mins=_cat(mins) if mins else None,
    )


def _cat_codes(codes: Sequence[Tensor]) -> Tensor:
    """One matrix of several, in the order in which memory lies: against it, joining costs more than all the rest."""
    if all(each.stride(0) == 1 for each in codes):
        return torch.cat([each.t() for each in codes], dim=1).t()
    return torch.cat(list(codes))


def _kind(weight: GroupedWeight) -> tuple[object, ...]:
    """What must be equal for weights to be one: everything but the numbers."""
    zeros = None if isinstance(weight.zeros, Tensor) else weight.zeros
    mins = None if weight.mins is None else _shape(weight.mins)
    return weight.bits, weight.group, weight.k, weight.values, zeros, _shape(weight.scales), mins


def _shape(groups: Groups) -> tuple[object, ...]:
    return groups.fine.dtype, None if groups.coarse is None else groups.coarse.dtype, groups.span


def _same_lookups(a: GroupedWeight, b: GroupedWeight) -> bool:
    return _same(a.order, b.order) and _same(a.table, b.table)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return torch.equal(a, b) if a is not None and b is not None else a is b


def _cat(groups: Sequence[Groups]) -> Groups:
    coarse = [each.coarse for each in groups if each.coarse is not None]
    fine = torch.cat([each.fine for each in groups], dim=1)
    return replace(groups[0], fine=fine, coarse=torch.cat(coarse, dim=1) if coarse else None)


def moved_to(weight: GroupedWeight, device: torch.device) -> GroupedWeight:
    """The same weight on `device`."""

    def moved(groups: Groups) -> Groups:
        coarse = None if groups.coarse is None else groups.coarse.to(device)
        return replace(groups, fine=groups.fine.to(device), coarse=coarse)

    return replace(
        weight,
        planes=tuple(plane.to(device) for plane in weight.planes),
        scales=moved(weight.scales),
        zeros=weight.zeros.to(device) if isinstance(weight.zeros, Tensor) else weight.zeros,
        mins=None if weight.mins is None else moved(weight.mins),
        table=None if weight.table is None else weight.table.to(device),
        order=None if weight.order is None else weight.order.to(device),
    )
