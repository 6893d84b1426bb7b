"""What a model name in a request means: the one question that the serving side asks of a registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .adapter import AdapterRef


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One adapter that requests may name."""

    name: str
    ref: AdapterRef
    created: int  # seconds since the epoch


class Catalog(Protocol):
    """The names that requests may use. Never answers with the base for a name that is not the base's."""

    async def resolve(self, model: str) -> AdapterRef | None:
        """The adapter that `model` names, None for the base; raises NotFound (`model_not_found`, param `model`)."""

    async def list(self) -> Sequence[CatalogEntry]:
        """Every adapter that can be named now."""
