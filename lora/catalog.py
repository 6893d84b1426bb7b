"""What a model name in a request means: the one question that the serving side asks of a registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core.callers import DEFAULT_TENANT, Caller
from .adapter import AdapterRef


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One adapter that requests may name."""

    name: str
    ref: AdapterRef
    created: int  # seconds since the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What a name meant, for one request. The base has no `ref`; `speaker` is then its name.

    `shadow` is a revision that shall receive a copy of the request, whose answer nobody sees.
    """

    ref: AdapterRef | None
    speaker: str  # name@revision: what the answer says of itself
    owner: str = DEFAULT_TENANT  # the tenant whose adapter it is
    alias: str | None = None  # that was gone through
    shadow: AdapterRef | None = None


Sticky = Callable[[str | None], str | None]
"""What keeps a caller with one of several revisions: the value of a header that an alias names, of `user` for None."""


@dataclass(frozen=True, slots=True)
class Clues:
    """A Sticky as plain data: all that a request brings."""

    user: str | None
    headers: Mapping[str, str]  # by name in small letters

    def __call__(self, header: str | None) -> str | None:
        return self.user if header is None else self.headers.get(header.lower())


class Catalog(Protocol):
    """The names that requests may use. Never answers with the base for a name that is not the base's."""

    async def resolve(self, model: str, caller: Caller, sticky: Sticky) -> Resolution:
        """What `model` means to `caller` now, ready to be served. Raises NotFound (`model_not_found`, param `model`),
        with the same words whether there is no such adapter or the caller may not know of it."""

    async def list(self, caller: Caller) -> Sequence[CatalogEntry]:
        """Every adapter that `caller` can call by its bare name now."""

    async def find(self, model: str, caller: Caller) -> CatalogEntry | None:
        """What `resolve` would mostly find, under the name that was asked for; None where it would find nothing."""
