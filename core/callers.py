"""Who calls, and what they may: the words that every face and the registry share. Knows no key and no table."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .errors import Forbidden

DEFAULT_TENANT = "default"


class Scope(enum.StrEnum):
    """What a key may be used for."""

    INFER = "infer"
    READ = "adapters:read"
    WRITE = "adapters:write"
    ADMIN = "admin"  # everything, of every tenant


EVERYTHING = frozenset(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The holder of a key, or whoever calls where none is asked for.

    `adapters` are the names that it may use, None for all of its tenant's. `origin` is the address it calls from.
    `alone`: nobody else can call, the admin aside, so that there is nobody to be protected from it. `patient`: it waits
    as long as it takes, so that its requests are background work.
    """

    name: str  # a key's id, "admin", "anyone": what audit and usage call it
    tenant: str = DEFAULT_TENANT
    tenant_id: int = 1
    scopes: frozenset[Scope] = frozenset({Scope.INFER})
    adapters: frozenset[str] | None = None
    origin: str = ""
    alone: bool = False
    patient: bool = False

    def may(self, scope: Scope) -> bool:
        """Whether its scopes cover `scope`."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def require(self, scope: Scope) -> None:
        """Raises Forbidden without that scope."""
        if not self.may(scope):
            held = ", ".join(sorted(self.scopes)) or "none"
            raise Forbidden(f"this needs a key with the scope {scope.value}; the scopes of yours: {held}")

    def may_use(self, adapter: str) -> bool:
        """Whether its key is not kept from that adapter of its tenant."""
        return self.adapters is None or adapter in self.adapters


LOCAL = Caller(name="local", scopes=EVERYTHING)  # a command or a start on this machine
