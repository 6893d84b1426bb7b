"""Who may call /v1: bearer keys. Knows no route."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ..core.bearer import digest_of, is_same
from ..core.errors import Unauthorized


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a key."""

    name: str


class KeyVerifier(Protocol):
    """Whoever can tell which caller a key belongs to."""

    async def verify(self, key: str) -> Caller:
        """The caller of `key`; raises Unauthorized for a key that is not known."""


class StaticKeys:
    """A fixed list of keys, each as good as the other."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [digest_of(key) for key in keys]

    async def verify(self, key: str) -> Caller:
        """Compares with every key, so that the time taken tells nothing."""
        matches = [is_same(key, digest) for digest in self._digests]
        if not any(matches):
            raise Unauthorized("incorrect API key; send one that this server was started with")
        return Caller(name=f"key-{matches.index(True)}")
