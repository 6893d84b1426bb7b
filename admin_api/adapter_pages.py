"""Pages of adapters as JSON, written straight from the rows: what AdapterList would say, at a third of the work.

Fifty adapters are a hundred rows, and half of their columns hold JSON. Read into mapped objects, checked as views and
written again they cost 8 ms of a core; here what is JSON in the database is passed on as the text that it is. The
fields are those of the views, so that a list and a single adapter never tell different things of one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from sqlalchemy import JSON, ColumnElement, Row, Text, cast, select
from sqlalchemy.orm import InstrumentedAttribute, Session

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
    revisions = _rows_of(session, Revision, RevisionView.model_fields, Revision.number, ids)
    aliases = _rows_of(session, Alias, AliasView.model_fields, Alias.name, ids)
    data = ",".join(_adapter(owner, revisions[owner.id], aliases[owner.id], catalog) for owner in owners)
    return f'{{"object":"list","next_cursor":{_plain(cursor)},"data":[{data}]}}'


def _rows_of(
    session: Session, table: type[Base], fields: Iterable[str], order: InstrumentedAttribute[Any], ids: Sequence[int]
) -> Mapping[int, list[Row[Any]]]:
    """The rows of each adapter, with the columns of `fields`; those that hold JSON as text."""
    columns = table.__table__.c
    told = [_as_text(columns[name]) for name in fields if name in columns]
    if table is Alias:
        told.append(Alias.version)
    query = select(columns.adapter_id, *told).where(columns.adapter_id.in_(ids)).order_by(order)
    found: dict[int, list[Row[Any]]] = defaultdict(list)
    for row in session.execute(query):
        found[row.adapter_id].append(row)
    return found


def _as_text(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column


def _adapter(
    owner: Row[Any], revisions: Sequence[Row[Any]], aliases: Sequence[Row[Any]], catalog: AdapterCatalog
) -> str:
    default = next((json.loads(alias.weights) for alias in aliases if alias.name == DEFAULT_ALIAS), None)
    number = _heaviest(default) if default else None
    digest = next((revision.digest for revision in revisions if revision.number == number), None)
    said = {
        "object": "adapter",
        "name": owner.name,
        "tenant": owner.tenant,
        "description": owner.description,
        "public": owner.public,
        "active": digest is not None,
        "revision": number if digest is not None else None,
        "digest": digest,
        "fault": catalog.fault(owner.tenant, owner.name),
        "created": owner.created,
    }
    parts = {
        "revisions": _array(_revision(revision, catalog) for revision in revisions),
        "aliases": _array(_alias(owner.name, alias) for alias in aliases),
        "etag": _plain(etag(owner.version)),
    }
    return _object({name: _plain(value) for name, value in said.items()} | parts)


def _revision(row: Row[Any], catalog: AdapterCatalog) -> str:
    fault = catalog.judge(json.loads(row.base)) if row.state is State.READY else None
    return _object(_columns(row, _OF_REVISION) | {"fault": _plain(fault)})


def _alias(adapter: str, row: Row[Any]) -> str:
    weights = json.loads(row.weights)
    more = {
        "object": _plain("alias"),
        "adapter": _plain(adapter),
        "revision": _plain(_heaviest(weights) if len(weights) == 1 else None),
        "etag": _plain(etag(row.version)),
    }
    return _object(more | _columns(row, _OF_ALIAS))


def _columns(row: Row[Any], names: Mapping[str, bool]) -> dict[str, str]:
    """Columns as JSON; what is JSON already stays as it is."""
    found = row._mapping
    return {name: (found[name] or "null") if is_json else _plain(found[name]) for name, is_json in names.items()}


def _names(table: type[Base], fields: Iterable[str]) -> Mapping[str, bool]:
    """Those fields that are columns, and whether they hold JSON."""
    columns = table.__table__.c
    return {name: isinstance(columns[name].type, JSON) for name in fields if name in columns}


def _heaviest(weights: Mapping[str, int]) -> int:
    return min((int(number) for number in weights), key=lambda number: (-weights[str(number)], number))


def _object(fields: Mapping[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def _array(values: Iterable[str]) -> str:
    return "[" + ",".join(values) + "]"


def _plain(value: object) -> str:
    return encode_basestring_ascii(value) if isinstance(value, str) else json.dumps(value)


_OF_REVISION = _names(Revision, RevisionView.model_fields)
_OF_ALIAS = _names(Alias, AliasView.model_fields)
