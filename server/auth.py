"""Who may call. Knows no route."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Protocol

from ..core.bearer import digest_of, key_in, refuse_in_url
from ..core.callers import Caller
from ..core.errors import Unauthorized


class KeyVerifier(Protocol):
    """Whoever can tell which caller a key belongs to."""

    async def verify(self, header: str | None, origin: str, query: Iterable[tuple[str, str]] = ()) -> Caller:
        """The caller who sent that Authorization header from the address `origin`. Raises Unauthorized, and
        InvalidRequest for a key among the parameters of the query string."""


class Anyone:
    """No key is asked for."""

    async def verify(self, header: str | None, origin: str, query: Iterable[tuple[str, str]] = ()) -> Caller:
        """Everybody is the same caller."""
        return Caller(name="anyone", origin=origin, alone=True)


class OneKey:
    """One key opens."""

    def __init__(self, key: str, name: str) -> None:
        self._digest = digest_of(key)
        self._name = name

    async def verify(self, header: str | None, origin: str, query: Iterable[tuple[str, str]] = ()) -> Caller:
        """Its holder, by the name that was given."""
        refuse_in_url(name for name, _ in query)
        if not hmac.compare_digest(digest_of(key_in(header)), self._digest):
            raise Unauthorized(f"incorrect key; {self._name} has one of its own")
        return Caller(name=self._name, scopes=frozenset(), origin=origin)
