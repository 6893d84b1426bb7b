"""Usage in the database: counted up in batches, read by groups. Each function is a piece of one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from itertools import count
from typing import Any

from sqlalchemy import Select, delete, func, or_, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from .quotas import Spent
from .tables import NAME_LENGTH, Base, Flush, Spending, Usage, now

GROUPS = ("day", "tenant", "key", "model", "revision")
COUNTS = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens")
DEAD_SECONDS = 10  # a server that has said nothing for so long runs nothing
FORGET_SECONDS = 120  # what a server said so long ago is about no request of the last minute
KEEP_FLUSHES_SECONDS = 7 * 86400
KEPT_OF_NAME = NAME_LENGTH - 8  # characters of a former tenant's name, beside its number


@dataclass(frozen=True, slots=True)
class Line:
    """Whose requests are counted together."""

    day: str
    tenant: str
    key: str
    model: str
    revision: int


@dataclass(slots=True)
class Counts:
    """What they came to."""

    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which usage, and by what it is added up. Days are inclusive; `models` are the only ones to tell of."""

    groups: Sequence[str] = GROUPS
    first: str | None = None
    last: str | None = None
    where: Mapping[str, str] | None = None  # tenant, key, model
    models: frozenset[str] | None = None


def today() -> str:
    """The day, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def add(session: Session, server: str, number: int, batch: Mapping[Line, Counts]) -> None:
    """Count `batch` in, unless it is there already: its transaction may have been committed without our hearing so."""
    if not _claim(session, server, number):
        return
    rows = [
        dict(zip((*GROUPS, *COUNTS), (*astuple(line), *astuple(batch[line])), strict=True))
        for line in sorted(batch, key=astuple)  # in one order, so that two servers never wait for each other
    ]
    _upsert(session, Usage, rows, GROUPS, adding=COUNTS)


def tell(session: Session, server: str, spent: Mapping[str, Spent]) -> None:
    """Put down what tenants and keys have spent on `server`, and forget what nobody asks for any more."""
    rows = [
        {
            "server": server,
            "subject": subject,
            **{each.name: getattr(one, each.name) for each in fields(one)},
            "at": now(),
        }
        for subject, one in sorted(spent.items())
    ]
    _upsert(session, Spending, rows, ("server", "subject"))


def put_aside(session: Session, tenant: str) -> None:
    """Let the usage of a former tenant of that name be `tenant#1`, `tenant#2`, ...: a new one shows none of it."""
    is_former = Usage.tenant.startswith(f"{tenant[:KEPT_OF_NAME]}#", autoescape=True)
    names = set(session.scalars(select(Usage.tenant).where(or_(Usage.tenant == tenant, is_former)).distinct()))
    if tenant in names:
        free = next(name for at in count(1) if (name := f"{tenant[:KEPT_OF_NAME]}#{at}") not in names)
        session.execute(update(Usage).where(Usage.tenant == tenant).values(tenant=free))


def sweep(session: Session) -> None:
    """Forget servers that are long gone."""
    session.execute(delete(Spending).where(Spending.at < now() - FORGET_SECONDS))
    session.execute(delete(Flush).where(Flush.at < now() - KEEP_FLUSHES_SECONDS))


def elsewhere(session: Session, server: str) -> dict[str, Spent]:
    """What each tenant or key has spent on the other servers together."""
    found: dict[str, Spent] = {}
    fresh = select(Spending).where(Spending.server != server, Spending.at >= now() - FORGET_SECONDS // 2)
    for row in session.scalars(fresh):
        before, lives = found.get(row.subject, Spent()), row.at >= now() - DEAD_SECONDS
        found[row.subject] = Spent(
            before.requests + row.requests,
            before.tokens + row.tokens,
            before.running + lives * row.running,
            before.reserved + lives * row.reserved,
        )
    return found


def read(session: Session, asked: Question, after: Sequence[Any] | None, limit: int) -> list[dict[str, Any]]:
    """The next lines of an answer, behind the groups `after`."""
    groups = [getattr(Usage, name) for name in asked.groups]
    sums = [func.sum(getattr(Usage, name)).label(name) for name in COUNTS]
    query = _asked(select(*groups, *sums), asked).group_by(*groups).order_by(*groups).limit(limit)
    if after is not None:
        query = query.where(tuple_(*groups) > tuple_(*after))
    names = (*asked.groups, *COUNTS)
    return [
        {name: int(value) if name in COUNTS else value for name, value in zip(names, row, strict=True)}
        for row in session.execute(query)
    ]


def _asked(query: Select[Any], asked: Question) -> Select[Any]:
    for name, value in (asked.where or {}).items():
        query = query.where(getattr(Usage, name) == value)
    if asked.first is not None:
        query = query.where(Usage.day >= asked.first)
    if asked.last is not None:
        query = query.where(Usage.day <= asked.last)
    if asked.models is not None:
        query = query.where(Usage.model.in_(asked.models))
    return query


def _claim(session: Session, server: str, number: int) -> bool:
    """Whether batch `number` is still to be counted. Who asks while another transaction is at it waits for that one."""
    insert = _insert(session, Flush).values(server=server, number=number, at=now())
    new = {"number": insert.excluded.number, "at": insert.excluded.at}
    claim = insert.on_conflict_do_update(index_elements=["server"], set_=new, where=Flush.number < number)
    return session.scalar(claim.returning(Flush.number)) is not None


def _upsert(
    session: Session, table: type[Base], rows: list[dict[str, Any]], key: Sequence[str], adding: Sequence[str] = ()
) -> None:
    """Insert `rows`, or change those that are there: columns in `adding` grow, others are replaced."""
    if not rows:
        return
    insert = _insert(session, table)
    changed = {
        name: getattr(table, name) + insert.excluded[name] if name in adding else insert.excluded[name]
        for name in rows[0]
        if name not in key
    }
    session.execute(insert.on_conflict_do_update(index_elements=list(key), set_=changed), rows)


def _insert(session: Session, table: type[Base]) -> Any:
    """An INSERT of the database's own kind, as the standard has no upsert that both know."""
    dialect: Any = {"sqlite": sqlite, "postgresql": postgresql}[session.get_bind().dialect.name]
    return dialect.insert(table)
