"""Which names requests may use: a table in memory, so that asking costs nothing. AdapterService alone writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.errors import NotFound, Unavailable
from ..core.metrics import gauge
from ..lora.adapter import AdapterRef
from ..lora.catalog import CatalogEntry

ACTIVE = gauge("adapters_active", "Adapters that requests can name")


class AdapterCatalog:
    """The base and every active, usable adapter. Implements lora.catalog.Catalog."""

    def __init__(self, base: str) -> None:
        self.base = base
        self._entries: dict[str, CatalogEntry] = {}
        self._faults: dict[str, str] = {}

    async def resolve(self, model: str) -> AdapterRef | None:
        """The adapter that `model` names, None for the base. Raises NotFound, never falls back to the base;
        Unavailable for an adapter that is active but cannot be served."""
        entry = self._entries.get(model)
        if entry is not None:
            return entry.ref
        if model == self.base:
            return None
        if model in self._faults:
            raise Unavailable(f"the adapter {model!r} cannot be served: {self._faults[model]}", param="model")
        raise NotFound(f"the model {model!r} does not exist or is not active", param="model", code="model_not_found")

    async def list(self) -> Sequence[CatalogEntry]:
        """Every active adapter, by name."""
        return sorted(self._entries.values(), key=lambda entry: entry.name)

    def publish(self, entry: CatalogEntry) -> None:
        """From now on `entry.name` resolves to `entry.ref`."""
        self._entries[entry.name] = entry
        self._faults.pop(entry.name, None)
        ACTIVE.set(len(self._entries))

    def withdraw(self, name: str, *, fault: str | None = None) -> None:
        """From now on `name` does not resolve; `fault` says why when it should."""
        self._entries.pop(name, None)
        self._faults.pop(name, None)
        if fault is not None:
            self._faults[name] = fault
        ACTIVE.set(len(self._entries))

    def published(self, name: str) -> CatalogEntry | None:
        """What `name` resolves to."""
        return self._entries.get(name)

    def fault(self, name: str) -> str | None:
        """Why `name`, although active, does not resolve."""
        return self._faults.get(name)

    def names(self) -> Iterator[str]:
        """Every name that resolves or should."""
        return iter({**self._entries, **self._faults})
