"""Tenants and keys as an operator meets them: made, shown once, changed under ETags, revoked at once, and all noted."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from aril.admin_api.chain import verify
from aril.admin_api.tables import AuditLine, Base
from builders.registry import ADAPTERS, BASE, Place, Registry, alive
from sqlalchemy import select
from sqlalchemy.orm import Session

TENANTS, KEYS = "/admin/v1/tenants", "/admin/v1/keys"
ASKED = {"model": BASE, "prompt": "a", "max_tokens": 1}


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response that must have `status`."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["message"]
    return error


async def make(registry: Registry, path: str, **body: Any) -> dict[str, Any]:
    """POST, and what came of it."""
    answer = await registry.http.post(path, json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    assert answer.headers["etag"] == made["etag"]
    return made


async def infer(registry: Registry, secret: str) -> int:
    """The status that a completion has for who holds a key."""
    headers = {"Authorization": f"Bearer {secret}"}
    return (await registry.http.post("/v1/completions", json=ASKED, headers=headers)).status_code


@alive
async def test_a_tenant_is_made_changed_and_deleted(place: Place) -> None:
    async with place.running() as registry:
        made = await make(registry, TENANTS, name="acme", requests_per_minute=60, max_adapter_bytes=1 << 40)
        assert (made["requests_per_minute"], made["tokens_per_minute"], made["max_adapter_bytes"]) == (
            60,
            None,
            1 << 40,
        )
        assert (made["adapters"], made["adapter_bytes"]) == (0, 0)
        assert (await registry.http.get(f"{TENANTS}/acme")).json() == made
        body = {"requests_per_minute": None, "max_adapters": 3}
        changed = (await registry.http.patch(f"{TENANTS}/acme", json=body)).json()
        assert (changed["requests_per_minute"], changed["max_adapters"]) == (None, 3)
        assert changed["max_adapter_bytes"] == 1 << 40
        assert (await registry.http.delete(f"{TENANTS}/acme")).json()["deleted"] is True
        assert error_of(await registry.http.get(f"{TENANTS}/acme"), 404)["code"] == "tenant_not_found"


@alive
async def test_of_two_edits_of_one_version_the_second_is_refused(place: Place) -> None:
    async with place.running() as registry:
        tenant = await make(registry, TENANTS, name="acme")
        key = await make(registry, KEYS, name="ci")
        for path, made in ((f"{TENANTS}/acme", tenant), (f"{KEYS}/{key['id']}", key)):
            match = {"If-Match": made["etag"]}
            first = await registry.http.patch(path, json={"requests_per_minute": 5}, headers=match)
            assert first.headers["etag"] == first.json()["etag"] != made["etag"]
            second = await registry.http.patch(path, json={"requests_per_minute": 6}, headers=match)
            assert error_of(second, 412)["code"] == "stale"
            assert (await registry.http.get(path)).json()["requests_per_minute"] == 5
        assert error_of(await registry.http.delete(f"{TENANTS}/acme", headers={"If-Match": '"1"'}), 412)
        assert error_of(await registry.http.post(f"{KEYS}/{key['id']}/revoke", headers={"If-Match": '"1"'}), 412)


@alive
async def test_a_key_is_shown_once_and_opens_what_its_scopes_say(place: Place) -> None:
    async with place.running() as registry:
        await make(registry, TENANTS, name="acme")
        made = await make(registry, KEYS, name="ci", tenant="acme", scopes=["infer", "adapters:read"])
        secret = made.pop("key")
        assert secret.startswith(made["shown"])
        assert (await registry.http.get(f"{KEYS}/{made['id']}")).json() == made
        assert (await registry.http.get(KEYS)).json()["data"] == [made]
        headers = {"Authorization": f"Bearer {secret}"}
        assert await infer(registry, secret) == 200
        assert (await registry.http.get(ADAPTERS, headers=headers)).status_code == 200
        for path in (TENANTS, KEYS, f"{TENANTS}/acme", f"{KEYS}/{made['id']}"):
            error = error_of(await registry.http.get(path, headers=headers), 403)
            assert "the scope admin" in error["message"]
        refused = error_of(await registry.http.delete(f"{ADAPTERS}/a", headers=headers), 403)
        assert "adapters:write" in refused["message"]


@alive
async def test_once_there_is_a_key_v1_asks_for_one(place: Place) -> None:
    async with place.running() as registry:
        assert await infer(registry, "none") == 200
        made = await make(registry, KEYS, name="ci")
        assert [await infer(registry, secret) for secret in ("none", made["key"])] == [401, 200]
        await registry.http.post(f"{KEYS}/{made['id']}/revoke")
        assert [await infer(registry, secret) for secret in ("none", made["key"])] == [401, 401]
    async with place.running() as registry:
        assert [await infer(registry, secret) for secret in ("none", made["key"])] == [401, 401]


@alive
async def test_a_revoked_key_stays_revoked(place: Place) -> None:
    async with place.running() as registry:
        made = await make(registry, KEYS, name="ci")
        revoked = (await registry.http.post(f"{KEYS}/{made['id']}/revoke")).json()
        assert revoked["revoked"] >= made["created"]
        assert (await registry.http.post(f"{KEYS}/{made['id']}/revoke")).json() == revoked
        refused = await registry.http.patch(f"{KEYS}/{made['id']}", json={"expires": None})
        assert error_of(refused, 409)["code"] == "key_revoked"


@alive
async def test_the_keys_of_a_deleted_tenant_stop_at_once(place: Place) -> None:
    async with place.running() as registry:
        await make(registry, TENANTS, name="acme")
        made = await make(registry, KEYS, name="ci", tenant="acme")
        assert await infer(registry, made["key"]) == 200
        await registry.http.delete(f"{TENANTS}/acme")
        assert [await infer(registry, secret) for secret in ("none", made["key"])] == [401, 401]
        error_of(await registry.http.get(f"{KEYS}/{made['id']}"), 404)


@alive
async def test_a_key_may_gain_and_lose_scopes(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        made = await make(registry, KEYS, name="ci")
        path = f"{KEYS}/{made['id']}"
        await registry.http.patch(path, json={"scopes": ["adapters:read"], "adapters": ["a", "org/b"]})
        assert await infer(registry, made["key"]) == 403
        assert (await registry.http.get(path)).json()["adapters"] == ["a", "org/b"]
        error_of(await registry.http.patch(path, json={"scopes": ["admin"]}), 400)
        await registry.http.patch(path, json={"scopes": ["admin"], "adapters": None})
        headers = {"Authorization": f"Bearer {made['key']}"}
        assert (await registry.http.get(TENANTS, headers=headers)).status_code == 200


@alive
async def test_a_key_whose_making_is_sent_again_is_made_once_and_shown_once(place: Place) -> None:
    async with place.running() as registry:
        once = {"Idempotency-Key": "a"}
        answers = [await registry.http.post(KEYS, json={"name": "ci"}, headers=once) for _ in range(2)]
        first, second = [answer.json() for answer in answers]
        assert [answer.status_code for answer in answers] == [201, 201]
        assert first["key"].startswith("aril-")
        assert second == {**first, "key": None}
        assert len((await registry.http.get(KEYS)).json()["data"]) == 1
        _, everything = registry.admin.database.transact(_noted)
        assert first["key"] not in everything
        other = await registry.http.post(KEYS, json={"name": "other"}, headers=once)
        assert error_of(other, 409)["code"] == "idempotency_key_reused"
        at_once = [registry.http.post(KEYS, json={"name": "ci"}, headers={"Idempotency-Key": "b"}) for _ in range(3)]
        made = [answer.json() for answer in await asyncio.gather(*at_once)]
        assert len({key["id"] for key in made}) == 1
        assert [key["key"] is None for key in made].count(False) == 1


@alive
async def test_changes_that_are_sent_again_are_done_once(place: Place) -> None:
    async with place.running() as registry:
        key = (await make(registry, KEYS, name="ci"))["id"]
        writes: list[tuple[str, str, Any]] = [
            ("POST", TENANTS, {"name": "acme"}),
            ("PATCH", f"{TENANTS}/acme", {"max_adapters": 3}),
            ("PATCH", f"{KEYS}/{key}", {"name": "other"}),
            ("POST", f"{KEYS}/{key}/revoke", None),
            ("DELETE", f"{TENANTS}/acme?adapters=delete", None),
        ]
        for number, (method, path, body) in enumerate(writes):
            once = {"Idempotency-Key": str(number)}
            first, second = [await registry.http.request(method, path, json=body, headers=once) for _ in range(2)]
            assert first.is_success, first.text
            assert (second.status_code, second.json()) == (first.status_code, first.json())
        lines, _ = registry.admin.database.transact(_noted)
        assert len(lines) == 1 + len(writes)


@alive
async def test_the_tenant_that_is_there_from_the_beginning_stays(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        error_of(await registry.http.delete(f"{TENANTS}/default"), 409)


@alive
async def test_lists_come_in_pages_and_by_tenant(place: Place) -> None:
    async with place.running() as registry:
        for name in ("c", "a", "b"):
            await make(registry, TENANTS, name=name)
            await make(registry, KEYS, name="k", tenant=name)
        seen, cursor = [], None
        for _ in range(2):
            parameters = {"limit": 2, **({"cursor": cursor} if cursor else {})}
            found = (await registry.http.get(TENANTS, params=parameters)).json()
            seen += [tenant["name"] for tenant in found["data"]]
            cursor = found["next_cursor"]
        assert (seen, cursor) == (["a", "b", "c", "default"], None)
        found = (await registry.http.get(KEYS, params={"limit": 2})).json()
        rest = (await registry.http.get(KEYS, params={"cursor": found["next_cursor"]})).json()
        assert {key["tenant"] for key in (*found["data"], *rest["data"])} == {"a", "b", "c"}
        assert [key["tenant"] for key in (await registry.http.get(KEYS, params={"tenant": "b"})).json()["data"]] == [
            "b"
        ]
        error_of(await registry.http.get(KEYS, params={"tenant": "nobody"}), 404)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (TENANTS, {}, "name"),
    (TENANTS, {"name": "a/b"}, "name"),
    (TENANTS, {"name": "\u0430cme"}, "name"),  # Cyrillic a
    (TENANTS, {"name": "a" * 129}, "name"),
    (TENANTS, {"name": "a", "requests_per_minute": 0}, "requests_per_minute"),
    (TENANTS, {"name": "a", "max_adapters": -1}, "max_adapters"),
    (TENANTS, {"name": "a", "tokens_per_minute": 1 << 31}, "tokens_per_minute"),
    (TENANTS, {"name": "a", "colour": "red"}, "colour"),
    (KEYS, {}, "name"),
    (KEYS, {"name": ""}, "name"),
    (KEYS, {"name": "a\nb"}, "name"),
    (KEYS, {"name": "a", "scopes": []}, "scopes"),
    (KEYS, {"name": "a", "scopes": ["root"]}, "scopes[0]"),
    (KEYS, {"name": "a", "adapters": ["../b"]}, "adapters"),
    (KEYS, {"name": "a", "adapters": ["b"], "scopes": ["admin"]}, "adapters"),
    (KEYS, {"name": "a", "expires": 1}, "expires"),
    (KEYS, {"name": "a", "key": "my-own"}, "key"),
    (KEYS, {"name": "a", "requests_per_minute": "5"}, "requests_per_minute"),
]


@pytest.mark.parametrize(("path", "body", "field"), WRONG, ids=lambda value: str(value)[:40])
@alive
async def test_what_makes_no_sense_is_refused_by_name(
    sqlite_place: Place, path: str, body: dict[str, Any], field: str
) -> None:
    async with sqlite_place.running() as registry:
        assert error_of(await registry.http.post(path, json=body), 400)["param"] == field


@alive
async def test_what_is_not_there_is_not_found(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        assert error_of(await registry.http.post(KEYS, json={"name": "a", "tenant": "b"}), 404)["param"] == "tenant"
        for method, path in (("PATCH", f"{TENANTS}/b"), ("PATCH", f"{KEYS}/b")):
            error_of(await registry.http.request(method, path, json={}), 404)
        error_of(await registry.http.post(f"{KEYS}/b/revoke"), 404)
        error_of(await registry.http.post(f"{TENANTS}", json={"name": "default"}), 409)
        twice = await registry.http.post(TENANTS, content=b'{"name": "a", "name": "b"}')
        assert error_of(twice, 400)["code"] == "duplicate_field"
        error_of(await registry.http.get(KEYS, params={"limit": 0}), 400)


@alive
async def test_every_change_is_noted_and_no_secret_is_kept(place: Place) -> None:
    async with place.running() as registry:
        await make(registry, TENANTS, name="acme")
        await registry.http.patch(f"{TENANTS}/acme", json={"max_adapters": 3})
        await registry.http.patch(f"{TENANTS}/acme", json={"max_adapters": 3})  # changes nothing
        made = await make(registry, KEYS, name="ci", tenant="acme")
        await registry.http.patch(f"{KEYS}/{made['id']}", json={"scopes": ["adapters:read"]})
        await registry.http.post(f"{KEYS}/{made['id']}/revoke")
        await registry.http.delete(f"{TENANTS}/acme")
        lines, everything = registry.admin.database.transact(_noted)
        assert verify(registry.admin.database).reason is None
    assert [(line.kind, line.action, line.tenant, line.actor) for line in lines] == [
        ("tenant", "create", "acme", "admin"),
        ("tenant", "change", "acme", "admin"),
        ("key", "create", "acme", "admin"),
        ("key", "change", "acme", "admin"),
        ("key", "revoke", "acme", "admin"),
        ("tenant", "delete", "acme", "admin"),
    ]
    assert lines[1].before["max_adapters"] is None
    assert lines[1].after["max_adapters"] == 3
    assert (lines[3].before["scopes"], lines[3].after["scopes"]) == (["infer"], ["adapters:read"])
    assert made["key"] not in everything
    assert made["key"].split("-", 1)[1][5:] not in everything


def _noted(session: Session) -> tuple[list[Any], str]:
    """The audit, and all that the database holds, as one text."""
    rows = [tuple(row) for table in Base.metadata.sorted_tables for row in session.execute(select(table))]
    return list(session.scalars(select(AuditLine).order_by(AuditLine.id))), repr(rows)
