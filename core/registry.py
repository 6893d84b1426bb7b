"""A folder is the list of its plug-ins.

`Registry("quantisation format", package="aril.quant.formats")` lists the modules of that package, imports one on first
use and reads its `EXPORT`. Others add to it through the entry-point group of the package's name.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Generic, TypeVar, cast

from .errors import Unsupported

T = TypeVar("T")


class Registry(Generic[T]):
    """The plug-ins of one kind, by name; nothing is imported before it is asked for."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._loaded: dict[str, T] = {}

    def names(self) -> list[str]:
        """Every name that can be asked for, sorted."""
        home = importlib.import_module(self.package)
        ours = {m.name for m in pkgutil.iter_modules(home.__path__) if not m.name.startswith("_")}
        return sorted(ours | {e.name for e in _of_others(self.package)})

    def __getitem__(self, name: str) -> T:
        """The plug-in called `name`; raises Unsupported with the choices."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> T:
        for entry in _of_others(self.package):
            if entry.name == name:
                return cast(T, entry.load())
        if name not in self.names():
            raise Unsupported(f"no {self.kind} {name!r}; there are {', '.join(self.names())}")
        return cast(T, importlib.import_module(f"{self.package}.{name}").EXPORT)


@cache
def _of_others(group: str) -> EntryPoints:
    """What other packages add; asking reads the metadata of every package that is installed."""
    return entry_points(group=group)
