"""Adapters in folders on this machine, for an engine without a registry: the refs, and where their bytes are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import InvalidAdapter
from ..core.log import event, get_logger
from ..lora.adapter import AdapterRef
from ..lora.store import content_digest
from .engine import Engine

log = get_logger(__name__)


class AdapterFolders:
    """One adapter for each name; reads what they hold. Raises InvalidAdapter, naming it and its folder."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self.refs = {name: _ref(name, folder) for name, folder in folders.items()}
        self._homes = {ref.digest: folders[name] for name, ref in self.refs.items()}

    def home(self, ref: AdapterRef) -> Path:
        """Where the bytes of `ref` are."""
        return self._homes[ref.digest]

    def check(self, engine: Engine) -> None:
        """Raises InvalidAdapter, naming every problem, for one that does not fit the base."""
        for ref in self.refs.values():
            with _told_of(ref.name, self._folders[ref.name]):
                other_base = engine.check_adapter(ref).other_base
            if other_base is not None:
                log.warning(event("adapter_of_another_base", adapter=ref.name, problem=other_base))


def _ref(name: str, folder: Path) -> AdapterRef:
    with _told_of(name, folder):
        if not folder.is_dir():
            raise InvalidAdapter("there is no such folder")
        return AdapterRef(name, 1, content_digest(folder))


@contextmanager
def _told_of(name: str, folder: Path) -> Iterator[None]:
    """What is wrong inside is told with the adapter's name and place."""
    try:
        yield
    except InvalidAdapter as error:
        message = f"adapter {name!r}, {folder}: {error.message}"
        raise InvalidAdapter(message, param="adapters", problems=error.problems) from None
