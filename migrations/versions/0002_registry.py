"""Tenants and keys, aliases in place of one active revision, the gate's states, usage, and a chain of the audit.

Tables that change are read, dropped and made anew with their rows: SQLite could alter them only by copies whose making
would, with its foreign keys on, delete what refers to them. Long because it makes a whole schema.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

Row = dict[str, Any]
DEFAULT = "default"
ADDED = ("uploads", "replies", "spending", "flushes", "usage", "keys", "aliases")


def upgrade() -> None:
    """Every adapter becomes the default tenant's, what was active the alias `default`, every sound revision ready."""
    adapters, revisions, audit = (_taken(name) for name in ("adapters", "revisions", "audit"))
    for name in ("audit", "revisions", "adapters"):
        op.drop_table(name)
    created = min((row["created"] for row in adapters), default=0)
    _make_tenants()
    _make_adapters()
    _make_revisions()
    _make_aliases()
    _make_audit()
    _make_records()
    _fill("tenants", [{"id": 1, "name": DEFAULT, "version": 1, "created": created}])
    _fill("adapters", [{**row, "tenant_id": 1, "public": False, "version": 1} for row in adapters])
    _fill("revisions", [_checked(row) for row in revisions])
    _fill("aliases", [_alias(row) for row in revisions if row["state"] == "active"])
    _fill("audit", _chained(audit))


def downgrade() -> None:
    """Back to one active revision of each name. What only the new tables know (tenants, keys, usage) is lost."""
    adapters, revisions, audit, aliases = (_taken(name) for name in ("adapters", "revisions", "audit", "aliases"))
    _refuse_shared_names(adapters)
    for name in (*ADDED, "audit", "revisions", "adapters", "tenants"):
        op.drop_table(name)
    _make_first_tables()
    _fill("adapters", [_only(row, "id", "name", "description", "created") for row in adapters])
    active = {(row["adapter_id"], _heaviest(row["weights"])) for row in aliases if row["name"] == DEFAULT}
    _fill("revisions", [_unchecked(row, active) for row in revisions])
    kept = [row | {"adapter": row["subject"]} for row in audit if row["kind"] == "adapter"]
    _fill("audit", [_only(row, "id", "at", "actor", "action", "adapter", "revision", "digest") for row in kept])


def _taken(name: str) -> list[Row]:
    """All rows of a table as it stands now, oldest first."""
    table = sa.Table(name, sa.MetaData(), autoload_with=op.get_bind())
    return [dict(row) for row in op.get_bind().execute(sa.select(table).order_by(table.c.id)).mappings()]


def _fill(name: str, rows: Sequence[Row]) -> None:
    """Put rows, of which each has the same columns, into a table."""
    table = sa.Table(name, sa.MetaData(), autoload_with=op.get_bind())
    for row in rows:
        op.get_bind().execute(sa.insert(table), row)
    if rows and "id" in rows[0] and op.get_bind().dialect.name == "postgresql":
        op.execute(f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), (SELECT max(id) FROM {name}))")


def _only(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


def _checked(row: Row) -> Row:
    new: Row = {"author": "", "note": "", "tags": [], "source": "upload", "base": {}, "golden": [], "forced": False}
    new["attempts"] = 0
    state = "retired" if row["state"] == "retired" else "ready"
    return row | new | {"state": state, "changed": row["created"]}


def _unchecked(row: Row, active: set[tuple[int, int]]) -> Row:
    names = ("id", "adapter_id", "number", "digest", "size", "rank", "target_modules", "notes", "config", "created")
    gone = row["state"] in ("retired", "rejected")
    state = "active" if (row["adapter_id"], row["number"]) in active else "retired" if gone else "stored"
    return _only(row, *names) | {"state": state}


def _alias(row: Row) -> Row:
    made = {"version": 1, "created": row["created"], "changed": row["created"], "history": []}
    return {"adapter_id": row["adapter_id"], "name": DEFAULT, "weights": {str(row["number"]): 100}} | made


def _heaviest(weights: Mapping[str, int]) -> int:
    return min((int(number) for number in weights), key=lambda number: (-weights[str(number)], number))


def _chained(lines: Sequence[Row]) -> list[Row]:
    """The audit with a hash of each line and all before it, as admin_api/audit.py reckons it."""
    found, last = [], ""
    for line in lines:
        row = _only(line, "id", "at", "actor", "action", "revision", "digest") | {"subject": line["adapter"]}
        row |= {"tenant": DEFAULT, "origin": "", "kind": "adapter"}
        names = ("at", "tenant", "actor", "origin", "kind", "subject", "action", "revision", "digest")
        said = json.dumps([last, *(row[name] for name in names), None, None], separators=(",", ":"))
        last = hashlib.sha256(said.encode()).hexdigest()
        found.append(row | {"hash": last})
    return found


def _refuse_shared_names(adapters: Sequence[Row]) -> None:
    names = [row["name"] for row in adapters]
    shared = sorted({name for name in names if names.count(name) > 1})
    if shared:
        raise ValueError(f"adapters of several tenants share a name, which the older schema cannot hold: {shared}")


def _id() -> sa.Column[Any]:
    return sa.Column("id", sa.Integer(), nullable=False)


def _text(name: str, length: int | None = None, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length) if length else sa.Text(), nullable=nullable)


def _number(name: str, *, big: bool = False, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger() if big else sa.Integer(), nullable=nullable)


def _json(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(), nullable=nullable)


def _limits() -> tuple[sa.Column[Any], ...]:
    names = ("requests_per_minute", "tokens_per_minute", "concurrent_requests")
    return tuple(_number(name, nullable=True) for name in names)


def _owner(table: str, column: str, other: str, *, cascade: bool = True) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_{column}_{other}"
    return sa.ForeignKeyConstraint([column], [f"{other}.id"], name=name, ondelete="CASCADE" if cascade else None)


def _make_tenants() -> None:
    op.create_table(
        "tenants",
        _id(),
        _text("name", 128),
        *_limits(),
        _number("max_adapters", nullable=True),
        _number("max_adapter_bytes", big=True, nullable=True),
        _number("version"),
        _number("created", big=True),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
        sa.UniqueConstraint("name", name="uq_tenants_name"),
    )
    op.create_table(
        "keys",
        _text("id", 32),
        _number("tenant_id"),
        _text("name", 128),
        _text("digest", 64),
        _text("shown", 16),
        _json("scopes"),
        _json("adapters", nullable=True),
        *_limits(),
        _number("version"),
        _number("created", big=True),
        _number("expires", big=True, nullable=True),
        _number("revoked", big=True, nullable=True),
        _owner("keys", "tenant_id", "tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("digest", name="uq_keys_digest"),
    )
    op.create_index("ix_keys_tenant_id", "keys", ["tenant_id"])


def _make_adapters() -> None:
    op.create_table(
        "adapters",
        _id(),
        _number("tenant_id"),
        _text("name", 128),
        _text("description"),
        sa.Column("public", sa.Boolean(), nullable=False),
        _number("version"),
        _number("created", big=True),
        _owner("adapters", "tenant_id", "tenants", cascade=False),
        sa.PrimaryKeyConstraint("id", name="pk_adapters"),
        sa.UniqueConstraint("tenant_id", "name", name="uq_adapters_tenant_id_name"),
    )
    op.create_index("ix_adapters_name", "adapters", ["name"])
    public: Row = {"sqlite_where": sa.text("public"), "postgresql_where": sa.text("public")}
    op.create_index("ix_adapters_public", "adapters", ["name"], unique=True, **public)


def _make_revisions() -> None:
    op.create_table(
        "revisions",
        _id(),
        _number("adapter_id"),
        _number("number"),
        _text("digest", 64),
        _number("size", big=True),
        _number("rank"),
        *(_json(name) for name in ("target_modules", "notes", "config")),
        _text("author", 128),
        _text("note"),
        _json("tags"),
        _text("source"),
        _json("base"),
        _json("golden"),
        sa.Column("forced", sa.Boolean(), nullable=False),
        sa.Column("activate", sa.Boolean(), nullable=True),
        _text("state", 16),
        _json("report", nullable=True),
        _text("checked_by", 64, nullable=True),
        _number("checked_until", big=True, nullable=True),
        _number("attempts"),
        _number("changed", big=True),
        _number("created", big=True),
        _owner("revisions", "adapter_id", "adapters"),
        sa.PrimaryKeyConstraint("id", name="pk_revisions"),
        sa.UniqueConstraint("adapter_id", "number", name="uq_revisions_adapter_id_number"),
    )
    op.create_index("ix_revisions_digest", "revisions", ["digest"])
    op.create_index("ix_revisions_state", "revisions", ["state"])


def _make_aliases() -> None:
    op.create_table(
        "aliases",
        _id(),
        _number("adapter_id"),
        _text("name", 64),
        _json("weights"),
        _text("sticky_header", 64, nullable=True),
        _json("shadow", nullable=True),
        _json("bounds", nullable=True),
        _json("history"),
        _number("version"),
        _number("created", big=True),
        _number("changed", big=True),
        _owner("aliases", "adapter_id", "adapters"),
        sa.PrimaryKeyConstraint("id", name="pk_aliases"),
        sa.UniqueConstraint("adapter_id", "name", name="uq_aliases_adapter_id_name"),
    )


def _make_audit() -> None:
    op.create_table(
        "audit",
        _id(),
        _number("at", big=True),
        _text("tenant", 128),
        _text("actor", 128),
        _text("origin", 64),
        _text("kind", 16),
        _text("subject", 256),
        _text("action", 32),
        _number("revision", nullable=True),
        _text("digest", 64, nullable=True),
        _json("before", nullable=True),
        _json("after", nullable=True),
        _text("hash", 64),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_tenant_subject", "audit", ["tenant", "subject"])


def _make_records() -> None:
    """Usage and what limits need, answers to repeated writes, uploads under way."""
    op.create_table(
        "usage",
        _text("day", 10),
        _text("tenant", 128),
        _text("key", 64),
        _text("model", 128),
        _number("revision"),
        *(
            _number(name, big=True)
            for name in ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens")
        ),
        sa.PrimaryKeyConstraint("day", "tenant", "key", "model", "revision", name="pk_usage"),
    )
    op.create_table(
        "flushes",
        _text("server", 32),
        _number("number", big=True),
        _number("at", big=True),
        sa.PrimaryKeyConstraint("server", name="pk_flushes"),
    )
    op.create_table(
        "spending",
        _text("server", 32),
        _text("subject", 136),
        *(_number(name, big=True) for name in ("requests", "tokens", "running", "reserved", "at")),
        sa.PrimaryKeyConstraint("server", "subject", name="pk_spending"),
    )
    op.create_table(
        "replies",
        _text("caller", 64),
        _text("key", 255),
        _text("request", 64),
        _number("status", nullable=True),
        _json("headers", nullable=True),
        _text("body", nullable=True),
        _number("created", big=True),
        sa.PrimaryKeyConstraint("caller", "key", name="pk_replies"),
    )
    op.create_table(
        "uploads",
        _text("id", 32),
        _number("tenant_id"),
        _text("name", 128),
        _text("author", 128),
        _text("origin", 64),
        _json("fields"),
        _json("files"),
        _text("source", nullable=True),
        _text("sha256", 64, nullable=True),
        _text("stage", 16),
        _json("problem", nullable=True),
        _number("revision", nullable=True),
        _text("digest", 64, nullable=True),
        _text("held_by", 64, nullable=True),
        _number("held_until", big=True, nullable=True),
        _number("created", big=True),
        _number("expires", big=True),
        _owner("uploads", "tenant_id", "tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_uploads"),
    )
    op.create_index("ix_uploads_tenant_id", "uploads", ["tenant_id"])


def _make_first_tables() -> None:
    """Adapters, revisions and audit as 0001 makes them."""
    from importlib import import_module

    import_module("aril.migrations.versions.0001_adapters").upgrade()
