"""An adapter by name: what a request, a slot, a cache and the registry mean when they say *adapter*."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """One immutable set of adapter bytes under a name.

    `digest` (hex SHA-256 of the canonical content) is the identity everywhere: registry, KV-prefix salt, caches.
    Two names for the same bytes share memory; new bytes under an old name never meet old KV.
    """

    name: str
    revision: int
    digest: str
