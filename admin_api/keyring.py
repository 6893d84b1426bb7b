"""Who holds which key: every key that opens a door, in memory, so that asking costs no query.

Keys of the database are known by their digest alone; beside them stand the admin key and those of --api-key. Changes
of keys and tenants go through `change`; the feed tells when another server on the same database made one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from ..core.bearer import digest_of, key_in, key_in_url, refuse_in_url
from ..core.callers import DEFAULT_TENANT, EVERYTHING, Caller, Scope
from ..core.errors import NotFound, Unauthorized
from .db import Database
from .feed import Change
from .tables import AuditLine, Key, Tenant

T = TypeVar("T")
ADMIN = Caller(name="admin", scopes=EVERYTHING)
ANYONE = Caller(name="anyone", alone=True)
NOBODY = 0  # the id of no tenant
WRONG = "incorrect API key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a tenant or a key may use; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None

    @classmethod
    def of(cls, row: Tenant | Key) -> Limits:
        """Those of a row."""
        return cls(
            requests_per_minute=row.requests_per_minute,
            tokens_per_minute=row.tokens_per_minute,
            concurrent_requests=row.concurrent_requests,
        )


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a key, and how long it is good."""

    caller: Caller
    expires: int | None = None
    revoked: int | None = None

    def refuses(self, now: float) -> str | None:
        """Why the key, although known, opens nothing; only who holds it hears so."""
        if self.revoked is not None:
            return "this API key has been revoked"
        if self.expires is not None and now >= self.expires:
            return "this API key has expired"
        return None


@dataclass(frozen=True, slots=True)
class Known:
    """What the database says of keys and tenants, all read at one time."""

    holders: Mapping[bytes, Holder] = field(default_factory=dict)
    tenants: Mapping[str, int] = field(default_factory=lambda: {DEFAULT_TENANT: 1})  # ids
    limits: Mapping[str, Limits] = field(default_factory=dict)  # of keys by id, of tenants by "tenant:" and name
    named: Mapping[str, Holder] = field(default_factory=dict)  # by the ids of keys
    had_keys: bool = True  # until the database has said otherwise

    @classmethod
    def read(cls, session: Session) -> Known:
        """All of it."""
        keys, tenants = session.scalars(select(Key)).all(), session.scalars(select(Tenant)).all()
        of_tenants = {f"tenant:{tenant.name}": Limits.of(tenant) for tenant in tenants}
        holders = {bytes.fromhex(key.digest): Holder(_caller(key), key.expires, key.revoked) for key in keys}
        return cls(
            holders=holders,
            named={holder.caller.name: holder for holder in holders.values()},
            tenants={tenant.name: tenant.id for tenant in tenants},
            limits={**of_tenants, **{key.id: Limits.of(key) for key in keys}},
            had_keys=bool(keys) or _ever_had_keys(session),
        )


class Keyring:
    """The one verifier of all faces. Implements server.auth.KeyVerifier and listens to the feed.

    The time it takes tells nothing of a key: what is looked up is the key's SHA-256, of which nobody can choose a part.
    """

    def __init__(
        self,
        database: Database,
        admin_key: bytes,
        api_keys: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`admin_key` is a digest; `api_keys` are keys of /v1 that act for the default tenant."""
        given = {digest_of(key): Caller(name=f"api-key-{at}") for at, key in enumerate(api_keys)}
        self._fixed = {digest: Holder(caller) for digest, caller in {**given, admin_key: ADMIN}.items()}
        self._named = {holder.caller.name: holder for holder in self._fixed.values()}
        self._asks_anyway = bool(given)
        self._known = Known()
        self._database = database
        self._clock = clock
        self._turn = asyncio.Lock()  # of two reads the later one must be kept

    async def reload(self) -> None:
        """From now on what the database says holds."""
        async with self._turn:
            self._known = await self._database.look(Known.read)

    async def change(self, work: Callable[[Session], T]) -> T:
        """Do `work`, a change of keys or tenants, in one transaction; it holds here on return."""
        done = await self._database.run(work)
        await self.reload()
        return done

    async def changed(self, changes: Sequence[Change] | None) -> None:
        """`reload`, where it concerns keys or tenants."""
        if changes is None or any(change.kind in ("key", "tenant") for change in changes):
            await self.reload()

    @property
    def asks(self) -> bool:
        """Whether /v1 is for holders of a key alone: where --api-key gives one, or ever one was made here."""
        return self._asks_anyway or self._known.had_keys

    async def verify(self, header: str | None, origin: str, query: Iterable[tuple[str, str]] = ()) -> Caller:
        """Who calls /v1: anyone as long as there is no key but the admin's, else the holder of a good key."""
        if self.asks:
            return self.demand(header, origin, query)
        try:
            return self.demand(header, origin, query)
        except Unauthorized:
            return replace(ANYONE, origin=origin)

    def demand(self, header: str | None, origin: str, query: Iterable[tuple[str, str]] = ()) -> Caller:
        """The holder of the key in an Authorization header; raises Unauthorized, and InvalidRequest where a key is in
        the query string."""
        self._refuse_in_url(query)
        holder = self._find(key_in(header))
        if holder is None:
            raise Unauthorized(WRONG)
        reason = holder.refuses(self._clock())
        if reason is not None:
            raise Unauthorized(reason)
        others = len(self._fixed) + len(self._known.holders) - 2  # without this key, or else a third, and the admin's
        return replace(holder.caller, origin=origin, alone=others <= 0)

    def stands_for(self, name: str) -> Caller:
        """Who goes by `name` now: what was asked for earlier is done as they may today. Raises Unauthorized when that
        is nobody any more."""
        if name == ANYONE.name and not self.asks:
            return ANYONE
        holder = self._named.get(name) or self._known.named.get(name)
        if holder is None:
            raise Unauthorized("there is no such key any more")
        reason = holder.refuses(self._clock())
        if reason is not None:
            raise Unauthorized(reason)
        return holder.caller

    def acting(self, caller: Caller, tenant: str | None) -> Caller:
        """`caller` in another tenant; raises Forbidden where it may not be there, NotFound where there is none."""
        there = self.looking_back(caller, tenant)
        if there.tenant_id == NOBODY:
            raise NotFound(f"no tenant {tenant!r}", param="tenant", code="tenant_not_found")
        return there

    def looking_back(self, caller: Caller, tenant: str | None) -> Caller:
        """`acting`, for who reads of the past: there a tenant may be one that has been deleted."""
        if tenant is None or tenant == caller.tenant:
            return caller
        caller.require(Scope.ADMIN)
        return replace(caller, tenant=tenant, tenant_id=self._known.tenants.get(tenant, NOBODY))

    def limits(self, subject: str) -> Limits:
        """Those of a key, or of `tenant:NAME`."""
        return self._known.limits.get(subject, NO_LIMITS)

    def _find(self, key: str) -> Holder | None:
        digest = digest_of(key)
        return self._fixed.get(digest) or self._known.holders.get(digest)

    def _refuse_in_url(self, query: Iterable[tuple[str, str]]) -> None:
        for name, value in query:
            refuse_in_url([name])
            if self._find(value) is not None:
                raise key_in_url(name)


NO_LIMITS = Limits()


def _caller(key: Key) -> Caller:
    return Caller(
        name=key.id,
        tenant=key.tenant.name,
        tenant_id=key.tenant_id,
        scopes=frozenset(Scope(scope) for scope in key.scopes),
        adapters=None if key.adapters is None else frozenset(key.adapters),
    )


def _ever_had_keys(session: Session) -> bool:
    # Deleting the last tenant that had keys must not open the door either; the audit forgets nothing.
    return bool(session.scalar(select(exists().where(AuditLine.kind == "key"))))
