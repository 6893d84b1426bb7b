"""Pages of adapters as JSON, written straight from the rows: what AdapterList would say, at a third of the work.

Fifty adapters are a hundred rows, and half of their columns hold JSON. Read into mapped objects, checked as views and
written again they cost 8 ms of a core; here what is JSON in the database is passed on as the text that it is. The
fields are those of the views, so that a list and a single adapter never tell different things of one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import Any

from sqlalchemy import JSON, Column, ColumnElement, Integer, Row, Select, String, Table, Text, bindparam, cast, select
from sqlalchemy.orm import Session

from ..core.callers import Caller
from . import repo
from .catalog import AdapterCatalog
from .etags import etag
from .schemas import AliasView, RevisionView
from .tables import DEFAULT_ALIAS, Alias, Base, Revision, State


def page(session: Session, caller: Caller, wanted: repo.Wanted, catalog: AdapterCatalog) -> str:
    """The adapters that are `wanted`, as an AdapterList."""
    owners, cursor = repo.page(session, caller, wanted)
    ids = [owner.id for owner in owners]
    revisions, aliases = (_by_adapter(session, query, ids) for query in (_OF_REVISION.query, _OF_ALIAS.query))
    judged = cache(lambda base: catalog.judge(json.loads(base)))  # nearly all say the same
    data = ",".join(
        _adapter(
            owner,
            catalog.fault(owner.tenant, owner.name),
            [(row, judged(row.base) if row.state is State.READY else None) for row in revisions[owner.id]],
            aliases[owner.id],
        )
        for owner in owners
    )
    return f'{{"object":"list","next_cursor":{_plain(cursor)},"data":[{data}]}}'


def _by_adapter(session: Session, query: Select[Any], ids: Sequence[int]) -> Mapping[int, list[Row[Any]]]:
    found: dict[int, list[Row[Any]]] = defaultdict(list)
    for row in session.execute(query, {"ids": ids}) if ids else ():
        found[row.adapter_id].append(row)
    return found


def _adapter(
    owner: Row[Any], fault: str | None, revisions: Sequence[tuple[Row[Any], str | None]], aliases: Sequence[Row[Any]]
) -> str:
    default = next((json.loads(alias.weights) for alias in aliases if alias.name == DEFAULT_ALIAS), None)
    number = _heaviest(default) if default else None
    digest = next((row.digest for row, _ in revisions if row.number == number), None)
    said = {
        "object": "adapter",
        "name": owner.name,
        "tenant": owner.tenant,
        "description": owner.description,
        "public": owner.public,
        "active": digest is not None,
        "revision": number if digest is not None else None,
        "digest": digest,
        "fault": fault,
        "created": owner.created,
    }
    parts = {
        "revisions": _array(_revision(*each) for each in revisions),
        "aliases": _array(_alias(owner.name, alias) for alias in aliases),
        "etag": _plain(etag(owner.version)),
    }
    return _object({name: _plain(value) for name, value in said.items()} | parts)


def _revision(row: Row[Any], fault: str | None) -> str:
    return f'{{{_OF_REVISION.written(row)},"fault":{_plain(fault)}}}'


def _alias(adapter: str, row: Row[Any]) -> str:
    weights = json.loads(row.weights)
    leads = _plain(_heaviest(weights) if len(weights) == 1 else None)
    more = f'"object":"alias","adapter":{_plain(adapter)},"revision":{leads},"etag":{_plain(etag(row.version))}'
    return f"{{{_OF_ALIAS.written(row)},{more}}}"


def _heaviest(weights: Mapping[str, int]) -> int:
    return min((int(number) for number in weights), key=lambda number: (-weights[str(number)], number))


def _object(fields: Mapping[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def _array(values: Iterable[str]) -> str:
    return "[" + ",".join(values) + "]"


def _plain(value: object) -> str:
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    return str(value) if type(value) is int else json.dumps(value)


def _raw(value: str | None) -> str:
    return value or "null"


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a table that a view has: first in the rows of `query`, each written as JSON by its writer."""

    query: Select[Any]  # made once: making it takes as long as answering it
    pattern: str
    writers: tuple[Callable[[Any], str], ...]

    @classmethod
    def of(cls, table: type[Base], fields: Iterable[str], order: str, *more: str) -> _Columns:
        """Those of `fields`, and `more` behind them, of some adapters' rows."""
        whole = table.__table__
        assert isinstance(whole, Table)
        columns = whole.c
        told = [columns[name] for name in fields if name in columns]
        rows = select(*map(_as_text, told), *(columns[name] for name in more)).order_by(columns[order])
        return cls(
            rows.where(columns.adapter_id.in_(bindparam("ids", expanding=True))),
            ",".join(f'"{column.name}":%s' for column in told),
            tuple(map(_writer, told)),
        )

    def written(self, row: Row[Any]) -> str:
        """The columns of a row as the inside of a JSON object."""
        return self.pattern % tuple(write(value) for write, value in zip(self.writers, row, strict=False))


def _as_text(column: Column[Any]) -> ColumnElement[Any]:
    return cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column


def _writer(column: Column[Any]) -> Callable[[Any], str]:
    if isinstance(column.type, JSON):
        return _raw
    if column.nullable or not isinstance(column.type, String | Integer):
        return _plain
    return encode_basestring_ascii if isinstance(column.type, String) else str


_OF_REVISION = _Columns.of(Revision, RevisionView.model_fields, "number", "adapter_id")
_OF_ALIAS = _Columns.of(Alias, AliasView.model_fields, "name", "adapter_id", "version")
