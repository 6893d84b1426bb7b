"""Adapters in folders on this machine, for an engine without a registry: the refs, and where their bytes are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..core.log import event, get_logger
from ..lora.adapter import AdapterRef
from ..lora.store import content_digest
from .engine import Engine

log = get_logger(__name__)


class AdapterFolders:
    """One adapter for each name; reads what they hold."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self.refs = {name: AdapterRef(name, 1, content_digest(folder)) for name, folder in folders.items()}
        self._homes = {ref.digest: folders[name] for name, ref in self.refs.items()}

    def home(self, ref: AdapterRef) -> Path:
        """Where the bytes of `ref` are."""
        return self._homes[ref.digest]

    def check(self, engine: Engine) -> None:
        """Raises InvalidAdapter, naming every problem, for one that does not fit the base."""
        for ref in self.refs.values():
            other_base = engine.check_adapter(ref).other_base
            if other_base is not None:
                log.warning(event("adapter_of_another_base", adapter=ref.name, problem=other_base))
