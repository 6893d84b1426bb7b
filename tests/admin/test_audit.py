"""The audit: read by filters and pages, and whole only if every line is what was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from aril.admin_api import audit, chain
from aril.admin_api.chain import verify
from aril.admin_api.db import Database
from aril.admin_api.migrate import upgrade
from aril.admin_api.tables import AuditLine
from aril.core.callers import Caller
from builders.registry import Place, alive
from sqlalchemy import delete, select, text, update
from sqlalchemy.orm import Session

AUDIT = "/admin/v1/audit"
WHO = Caller(name="key_a", tenant="acme", origin="10.0.0.1")


@pytest.fixture
def database(database_url: str) -> Any:
    found = Database(database_url)
    upgrade(found)
    yield found
    found.close()


def write(database: Database, count: int) -> None:
    """So many lines, each of a transaction of its own."""
    for number in range(count):
        after = {"b": number, "a": [1.5, None, "\u00e9\U0001f642"], "weights": {10: 1, 9: 2}}
        database.transact(lambda session, after=after: audit.note(session, WHO, "change", "key", "key_x", after=after))


def lines(database: Database) -> list[AuditLine]:
    return database.transact(lambda session: list(session.scalars(select(AuditLine).order_by(AuditLine.id))))


def test_what_was_written_is_sound(database: Database) -> None:
    assert (verify(database).reason, verify(database).lines) == (None, 0)
    write(database, 5)
    found = verify(database)
    assert (found.reason, found.lines, found.head) == (None, 5, lines(database)[-1].hash)


def alter(session: Session) -> None:
    session.execute(update(AuditLine).where(AuditLine.id == 3).values(actor="somebody else"))


def alter_inside(session: Session) -> None:
    session.execute(update(AuditLine).where(AuditLine.id == 3).values(after={"b": 7}))


def alter_and_hash_anew(session: Session) -> None:
    line = session.get_one(AuditLine, 3)
    line.actor = "somebody else"
    line.hash = audit.hash_of(line, session.get_one(AuditLine, 2).hash)


def remove(session: Session) -> None:
    session.execute(delete(AuditLine).where(AuditLine.id == 3))


def remove_the_first(session: Session) -> None:
    session.execute(delete(AuditLine).where(AuditLine.id == 1))


def swap(session: Session) -> None:
    for number, other in ((3, 100), (4, 3), (100, 4)):
        session.execute(update(AuditLine).where(AuditLine.id == number).values(id=other))


def insert(session: Session) -> None:
    session.execute(update(AuditLine).where(AuditLine.id == 5).values(id=6))
    line = AuditLine(id=5, tenant="acme", actor="x", origin="", kind="key", subject="key_x", action="revoke", at=1)
    line.hash = audit.hash_of(line, session.get_one(AuditLine, 4).hash)
    session.add(line)


@pytest.mark.parametrize(
    ("crime", "broken"),
    [
        (alter, 3),
        (alter_inside, 3),
        (alter_and_hash_anew, 4),
        (remove, 4),
        (remove_the_first, 2),
        (swap, 3),
        (insert, 6),
    ],
)
def test_a_line_that_was_altered_removed_or_put_in_is_found(
    database: Database, crime: Callable[[Session], None], broken: int
) -> None:
    write(database, 5)
    database.transact(crime)
    found = verify(database)
    assert found.broken == broken
    assert f"line {broken} is not what was written" in str(found.reason)


def test_an_end_that_was_cut_off_is_found_by_a_head_of_earlier(database: Database) -> None:
    write(database, 3)
    early = verify(database).head
    write(database, 2)
    late = verify(database).head
    assert verify(database, early).reason is None
    assert verify(database, late).reason is None
    database.transact(lambda session: session.execute(delete(AuditLine).where(AuditLine.id > 4)))
    write(database, 2)
    assert verify(database).reason is None
    assert verify(database, early).reason is None
    assert "cut off" in str(verify(database, late).reason)


def test_the_walk_goes_on_over_pages(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "LINES_AT_ONCE", 2)
    write(database, 5)
    assert verify(database).lines == 5
    database.transact(lambda session: session.execute(text("UPDATE audit SET action = 'x' WHERE id = 5")))
    assert (verify(database).broken, verify(database).lines) == (5, 4)


@alive
async def test_changes_are_told_with_who_when_from_where_before_and_after(place: Place) -> None:
    async with place.running() as registry:
        await registry.http.post("/admin/v1/tenants", json={"name": "acme"})
        await registry.http.patch("/admin/v1/tenants/acme", json={"max_adapters": 3})
        newest, oldest = (await registry.http.get(AUDIT)).json()["data"]
        assert (newest["action"], newest["before"]["max_adapters"], newest["after"]["max_adapters"]) == (
            "change",
            None,
            3,
        )
        assert (newest["actor"], newest["origin"], newest["tenant"]) == ("admin", "127.0.0.1", "acme")
        assert (oldest["action"], oldest["kind"], oldest["subject"]) == ("create", "tenant", "acme")
        told = (await registry.http.get(f"{AUDIT}/verify")).json()
        assert (told["sound"], told["reason"], told["lines"], told["head"]) == (True, None, 2, newest["hash"])
        assert (await registry.http.get(f"{AUDIT}/verify", params={"expect": oldest["hash"]})).json()["sound"] is True
        cut = (await registry.http.get(f"{AUDIT}/verify", params={"expect": "0" * 64})).json()
        assert (cut["sound"], cut["broken"]) == (False, None)


@alive
async def test_lines_are_found_by_what_they_say(place: Place) -> None:
    async with place.running() as registry:
        for name in ("a", "b", "c"):
            await registry.http.post("/admin/v1/tenants", json={"name": name})
        await registry.http.delete("/admin/v1/tenants/b")

        async def subjects(**asked: Any) -> list[str]:
            found = (await registry.http.get(AUDIT, params=asked)).json()["data"]
            return [line["subject"] for line in found]

        assert await subjects() == ["b", "c", "b", "a"]
        assert await subjects(order="oldest") == ["a", "b", "c", "b"]
        assert await subjects(tenant="b") == ["b", "b"]
        assert await subjects(action="delete") == ["b"]
        assert await subjects(subject="c", actor="admin", kind="tenant") == ["c"]
        assert await subjects(actor="nobody") == []
        assert await subjects(since=1 << 40) == await subjects(until=1) == []
        for order in ("newest", "oldest"):
            first = (await registry.http.get(AUDIT, params={"limit": 3, "order": order})).json()
            rest = await subjects(cursor=first["next_cursor"], order=order)
            assert [line["subject"] for line in first["data"]] + rest == await subjects(order=order)
        assert (await registry.http.get(AUDIT, params={"cursor": "x"})).status_code == 400


@alive
async def test_a_kind_that_there_is_not_is_told_those_there_are(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        answer = await registry.http.get(AUDIT, params={"kind": "tenants"})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "kind")
        assert all(repr(kind) in error["message"] for kind in get_args(audit.Kind))


@alive
async def test_only_the_scope_admin_reads_the_audit(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        body = {"name": "k", "scopes": ["adapters:read", "adapters:write"]}
        key = (await registry.http.post("/admin/v1/keys", json=body)).json()["key"]
        for path in (AUDIT, f"{AUDIT}/verify"):
            answer = await registry.http.get(path, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 403
