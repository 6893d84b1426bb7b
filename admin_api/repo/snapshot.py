"""What requests may name, read from the database as plain records."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Select, Text, cast, select
from sqlalchemy.orm import Session

from ...lora.adapter import AdapterRef
from ..canaries import Watch
from ..listing import Listed, Route
from ..tables import Adapter, Alias, AuditLine, Revision, State, Tenant

Judge = Callable[[Mapping[str, Any]], str | None]  # why what was checked on that base is not served here


def anywhere(_base: Mapping[str, Any]) -> str | None:
    """Whatever was checked on any base is served."""
    return None


def all_listed(session: Session, judge: Judge = anywhere) -> Sequence[Listed]:
    """Every adapter of every tenant."""
    return _read(session, select(Adapter.id), judge)


def listed(session: Session, tenant: str, name: str, judge: Judge = anywhere) -> Listed | None:
    """One adapter, if there is one of that name."""
    wanted = select(Adapter.id).join(Tenant).where(Tenant.name == tenant, Adapter.name == name)
    return next(iter(_read(session, wanted, judge)), None)


def _read(session: Session, wanted: Select[int], judge: Judge) -> list[Listed]:
    judged = cache(lambda base: judge(json.loads(base)))  # nearly all say the same
    owners = session.execute(
        select(Adapter.id, Tenant.name, Adapter.name, Adapter.public).join(Tenant).where(Adapter.id.in_(wanted))
    ).all()
    revisions: dict[int, dict[int, tuple[str, int]]] = defaultdict(dict)
    refused: dict[int, dict[int, str]] = defaultdict(dict)
    told = (Revision.adapter_id, Revision.number, Revision.digest, Revision.created, cast(Revision.base, Text))
    ready = select(*told).where(Revision.state == State.READY, Revision.adapter_id.in_(wanted))
    for owner, number, digest, created, base in session.execute(ready.order_by(Revision.number)):
        if (why := judged(base)) is None:
            revisions[owner][number] = (digest, created)
        else:
            refused[owner][number] = why
    routes: dict[int, dict[str, Route]] = defaultdict(dict)
    said = (Alias.weights, Alias.sticky_header, Alias.shadow, Alias.bounds, Alias.version, Alias.history)
    aliases = select(Alias.adapter_id, Alias.name, *said).where(Alias.adapter_id.in_(wanted))
    for owner, name, weights, header, shadow, bounds, version, history in session.execute(aliases):
        routes[owner][name] = Route.of(weights, header, shadow, Watch.of(bounds, version, weights, history))
    return [
        Listed(
            tenant=tenant,
            name=name,
            public=public,
            revisions={number: AdapterRef(name, number, digest) for number, (digest, _) in revisions[id].items()},
            created={number: created for number, (_, created) in revisions[id].items()},
            routes=routes[id],
            refused=refused[id],
        )
        for id, tenant, name, public in owners
    ]


def registry(session: Session) -> str | None:
    """What tells this registry from every other: the first thing that ever happened in it. None while nothing has."""
    first = session.execute(
        select(AuditLine.at, AuditLine.action, AuditLine.digest).order_by(AuditLine.id).limit(1)
    ).first()
    return hashlib.sha256(repr(tuple(first)).encode()).hexdigest() if first else None
