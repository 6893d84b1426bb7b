"""Who holds a key: every door asks the same ring, which knows digests alone and asks the database nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aril.admin_api import audit
from aril.admin_api.db import Database
from aril.admin_api.keyring import Keyring
from aril.admin_api.migrate import upgrade
from aril.admin_api.tables import Key, Tenant
from aril.core.bearer import digest_of
from aril.core.callers import LOCAL, Scope
from aril.core.errors import Forbidden, InvalidRequest, NotFound, Unauthorized
from builders.registry import alive
from sqlalchemy import event
from sqlalchemy.orm import Session

ADMIN_KEY = "the-admin-key"


class Clock:
    """A time that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def database(database_url: str) -> Any:
    found = Database(database_url)
    upgrade(found)
    yield found
    found.close()


def ring(database: Database, *api_keys: str, clock: Clock | None = None) -> Keyring:
    return Keyring(database, digest_of(ADMIN_KEY), api_keys, clock or Clock())


def key(secret: str, **fields: Any) -> Key:
    given: dict[str, Any] = {"name": secret, "shown": secret[:4], "scopes": ["infer"], "tenant_id": 1, **fields}
    return Key(id=f"key_{secret}", digest=digest_of(secret).hex(), **given)


def add(database: Database, *rows: Any) -> None:
    def work(session: Session) -> None:
        session.add_all(rows)
        for row in rows:
            audit.note(session, LOCAL, "create", "key" if isinstance(row, Key) else "tenant", str(row.id))

    database.transact(work)


async def name_of(keyring: Keyring, secret: str | None) -> str:
    """Whom /v1 takes the holder of a secret for."""
    header = None if secret is None else f"Bearer {secret}"
    return (await keyring.verify(header, "10.0.0.1")).name


@alive
async def test_v1_is_open_until_there_is_a_key_and_never_again(database: Database) -> None:
    keyring = ring(database)
    await keyring.reload()
    assert [await name_of(keyring, secret) for secret in (None, "none", ADMIN_KEY)] == ["anyone", "anyone", "admin"]
    add(database, Tenant(id=2, name="acme"), key("one", tenant_id=2, revoked=5))
    await keyring.reload()
    with pytest.raises(Unauthorized, match="no API key"):
        await name_of(keyring, None)
    database.transact(lambda session: session.delete(session.get_one(Tenant, 2)))
    await keyring.reload()
    with pytest.raises(Unauthorized, match="incorrect"):
        await name_of(keyring, "one")


@alive
async def test_v1_is_closed_before_the_database_has_been_read(database: Database) -> None:
    with pytest.raises(Unauthorized):
        await name_of(ring(database), None)


@alive
async def test_keys_of_flags_act_for_the_default_tenant_and_only_infer(database: Database) -> None:
    keyring = ring(database, "first", "second")
    await keyring.reload()
    assert [await name_of(keyring, secret) for secret in ("first", "second")] == ["api-key-0", "api-key-1"]
    caller = keyring.demand("bearer first", "")
    assert (caller.tenant, caller.scopes, caller.origin) == ("default", {Scope.INFER}, "")
    with pytest.raises(Unauthorized):
        await name_of(keyring, "third")


@alive
async def test_a_key_is_known_with_all_that_it_may(database: Database) -> None:
    fields = {"tenant_id": 2, "scopes": ["infer", "adapters:read"], "adapters": ["a"]}
    add(database, Tenant(id=2, name="acme"), key("one", **fields))
    keyring = ring(database)
    await keyring.reload()
    caller = await keyring.verify("Bearer one", "10.0.0.1")
    assert (caller.name, caller.tenant, caller.tenant_id, caller.origin) == ("key_one", "acme", 2, "10.0.0.1")
    assert (caller.scopes, caller.adapters) == ({Scope.INFER, Scope.READ}, {"a"})


@alive
async def test_a_key_stops_at_the_second_it_expires(database: Database) -> None:
    clock = Clock()
    add(database, key("short", expires=1010))
    keyring = ring(database, clock=clock)
    await keyring.reload()
    clock.now = 1009.9
    assert await name_of(keyring, "short") == "key_short"
    clock.now = 1010.0
    with pytest.raises(Unauthorized, match="expired"):
        await name_of(keyring, "short")


@alive
async def test_asking_costs_no_query(database: Database) -> None:
    add(database, key("one"))
    keyring, statements = ring(database), []
    await keyring.reload()
    event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    assert await name_of(keyring, "one") == "key_one"
    assert statements == []


@pytest.mark.parametrize("header", [None, "", "one", "Basic one", "Bearer", "Bearer wrong", "Bearer s\u00e9cret"])
@alive
async def test_any_other_header_is_refused(tmp_path: Path, header: str | None) -> None:
    with pytest.raises(Unauthorized):
        ring(Database(f"sqlite:///{tmp_path}/r.sqlite3"), "one").demand(header, "")


@pytest.mark.parametrize(
    "query", [("api_key", "x"), ("API-Key", ""), ("access_token", "x"), ("model", "one"), ("x", ADMIN_KEY)]
)
@alive
async def test_a_key_in_a_url_is_refused_in_words_that_do_not_show_it(tmp_path: Path, query: tuple[str, str]) -> None:
    keyring = ring(Database(f"sqlite:///{tmp_path}/r.sqlite3"), "one")
    with pytest.raises(InvalidRequest, match="no place for a key") as refused:
        await keyring.verify("Bearer one", "", [query])
    assert "one" not in refused.value.message.split()
    assert ADMIN_KEY not in refused.value.message


@alive
async def test_only_the_scope_admin_acts_in_other_tenants(database: Database) -> None:
    add(database, Tenant(id=2, name="acme"), key("writer", scopes=["adapters:write"]))
    keyring = ring(database)
    await keyring.reload()
    writer, admin = keyring.demand("Bearer writer", ""), keyring.demand(f"Bearer {ADMIN_KEY}", "")
    assert keyring.acting(writer, "default") == writer
    for name in ("acme", "nobody"):
        with pytest.raises(Forbidden):
            keyring.acting(writer, name)
    acting = keyring.acting(admin, "acme")
    assert (acting.name, acting.tenant, acting.tenant_id) == ("admin", "acme", 2)
    with pytest.raises(NotFound, match="no tenant 'nobody'"):
        keyring.acting(admin, "nobody")
