"""Attention backends: what a layer asks for, what a backend must answer, and which backend is taken.

A backend is one file in backends/; it says why it does not do a thing, and a choice that fails repeats every reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ...core.platform import Platform
from ...core.registry import Registry
from ..batch import LayerCache, Ragged


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one layer asks of attention.

    `window`: a token sees the last `window` positions, its own included. `softcap`: scores become
    softcap * tanh(scores / softcap). `scale` multiplies q.k.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    cache_dtype: torch.dtype
    window: int | None = None
    softcap: float | None = None
    alibi: bool = False


class AttentionBackend(ABC):
    """One way to write K and V into paged memory and to attend over it."""

    @abstractmethod
    def refuses(self, spec: AttentionSpec, platform: Platform) -> str | None:
        """Why it cannot serve such a layer on this machine; None = it can."""

    @abstractmethod
    def plan(self, ragged: Ragged, spec: AttentionSpec) -> Any:
        """Whatever `forward` needs to know of this step, made once for all layers like `spec`."""

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, plan: Any, spec: AttentionSpec) -> Tensor:
        """q[T, heads, D], k and v[T, kv_heads, D] -> [T, heads, D]; K and V go to the step's kv_slots first."""


backends: Registry[type[AttentionBackend]] = Registry("attention backend", package=f"{__package__}.backends")


def choose(name: str, specs: Sequence[AttentionSpec], platform: Platform) -> AttentionBackend:
    """The backend called `name`, or with "auto" the first one that serves every layer in `specs`.

    Raises Unsupported with the reason of each backend that was asked.
    """
    asked = backends.names() if name == "auto" else [name]
    reasons = []
    for candidate in asked:
        backend = _named(candidate)()
        refusal = _first_refusal(backend, specs, platform)
        if refusal is None:
            return backend
        reasons.append(f"{candidate}: {refusal}")
    raise Unsupported(f"no attention backend serves this model here ({'; '.join(reasons)})", param="attention_backend")


def refusals(specs: Sequence[AttentionSpec], platform: Platform) -> dict[str, str | None]:
    """Every backend by name, and why it does not serve every layer in `specs`; None = it does."""
    return {name: _first_refusal(backends[name](), specs, platform) for name in backends.names()}


def _named(name: str) -> type[AttentionBackend]:
    if name not in backends.names():
        choices = ", ".join(["auto", *backends.names()])
        raise Unsupported(f"no attention backend {name!r}; there are {choices}", param="attention_backend")
    return backends[name]


def _first_refusal(backend: AttentionBackend, specs: Iterable[AttentionSpec], platform: Platform) -> str | None:
    reasons = (backend.refuses(spec, platform) for spec in dict.fromkeys(specs))
    return next((reason for reason in reasons if reason is not None), None)
