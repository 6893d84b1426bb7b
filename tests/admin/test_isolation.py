"""Another tenant's private adapter does not exist: not by name, digest or alias, in no list, no error and no answer."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from pathlib import Path

import pytest
from aril.lora.config import CONFIG_FILE, WEIGHTS_FILE
from builders.registry import ADAPTERS, BASE, Place, alive
from builders.tenants import tenant, told, two
from sqlalchemy.event import listen


@alive
async def test_the_owner_uses_it_and_nobody_else_can_tell_it_from_nothing(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, stranger, digest):
        assert (await owner.ask("secret")).headers["x-aril-adapter"] == "secret@1"
        for form in ("{}", "{}@1", "{}@default", f"{{}}@sha256:{digest[:12]}", f"{BASE}:{{}}", f"{BASE}:{{}}@1"):
            assert (await owner.ask(form.format("secret"))).status_code == 200
            known, unknown = [await stranger.ask(form.format(name)) for name in ("secret", "nobody")]
            assert known.status_code == 404
            assert told(known, "secret") == told(unknown, "nobody")
        for form in ("{}@9", "{}@prod", "{}@sha256:00000000", "{}@"):
            known, unknown = [await stranger.ask(form.format(name)) for name in ("secret", "nobody")]
            assert (known.status_code, told(known, "secret")) == (404, told(unknown, "nobody"))
            assert "aliases: default" in (await owner.ask(form.format("secret"))).text


@alive
async def test_a_public_adapter_tells_other_tenants_nothing_of_its_aliases(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, stranger, _):
        made = await owner.registry.http.patch(f"{ADAPTERS}/secret", params={"tenant": "owner"}, json={"public": True})
        assert made.is_success, made.text
        known, unknown = [await stranger.ask(f"{name}@prod") for name in ("secret", "nobody")]
        assert told(known, "secret") == told(unknown, "nobody")
        assert (await stranger.ask("secret")).status_code == 200


@alive
async def test_no_route_tells_a_stranger_of_it(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, stranger, _):
        paths = (await owner.registry.http.get("/openapi.json")).json()["paths"]
        named = [(method, path) for path, methods in paths.items() if "{name}" in path for method in methods]
        assert len(named) > 5
        for method, path in named:
            if path.startswith("/admin/v1/tenants"):
                continue
            answers = []
            for name in ("secret", "nobody"):
                filled = path.replace("{name}", name).replace("{number}", "1").replace("{alias}", "default")
                body = {} if method == "get" else {"json": {"revision": 1}}
                answers.append(told(await stranger.send(method.upper(), filled, **body), name))
            assert answers[0] == answers[1], f"{method} {path}"
            assert answers[0][0] >= 400, f"{method} {path}"
        assert (await owner.ask("secret")).status_code == 200


@alive
async def test_an_upload_in_parts_is_its_tenants_own(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, stranger, _):
        spec = {"size": 1, "sha256": "0" * 64}
        body = {"name": "large", "files": {CONFIG_FILE: spec, WEIGHTS_FILE: spec}}
        known = (await owner.send("POST", "/admin/v1/uploads", json=body)).json()["id"]
        unknown = known[:-4] + "0000"
        for method, end in (("GET", ""), ("DELETE", ""), ("PUT", f"/files/{CONFIG_FILE}"), ("POST", "/complete")):
            headers = {"Upload-Offset": "0", "Content-Digest": f"sha-256=:{'A' * 43}=:"} if method == "PUT" else {}
            told_of = []
            for id in (known, unknown):
                answer = await stranger.registry.http.request(
                    method, f"/admin/v1/uploads/{id}{end}", headers=stranger.headers | headers
                )
                told_of.append(told(answer, id))
            assert told_of[0] == told_of[1], method
            assert told_of[0][0] == 404, told_of
        assert (await stranger.send("GET", "/admin/v1/uploads")).json()["data"] == []
        assert (await owner.send("GET", f"/admin/v1/uploads/{known}")).status_code == 200


@alive
async def test_vllms_routes_know_of_a_tenants_own_alone(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, stranger, _):
        kept = await tenant(owner.registry, "owner", adapters=["shown"])
        for who in (stranger, kept):
            for path in ("load", "unload"):
                route, where = f"/v1/{path}_lora_adapter", {"lora_path": "/nowhere"} if path == "load" else {}
                known, unknown = [
                    await who.send("POST", route, json={"lora_name": name, **where}) for name in ("secret", "nobody")
                ]
                assert told(known, "secret") == told(unknown, "nobody")
                assert known.status_code >= 400
        assert (await owner.ask("secret")).status_code == 200


@alive
async def test_a_stranger_costs_the_same_work_as_an_unknown_name(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, stranger, _):
        statements: list[str] = []
        engine, token = owner.registry.admin.database.engine, ASKED.set(True)
        listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]) if ASKED.get() else None)
        work = []
        for name in ("secret", "nobody"):
            statements.clear()
            await stranger.ask(name)
            await stranger.send("GET", f"/v1/models/{name}")
            assert statements == []  # a request is answered from memory
            for method in ("GET", "DELETE"):
                await stranger.send(method, f"{ADAPTERS}/{name}")
            work.append(list(statements))
        ASKED.reset(token)
        assert work[0] == work[1] != []


ASKED = ContextVar("ASKED", default=False)  # what works for a request of the test; the server's own work is not


@alive
async def test_lists_show_a_tenant_its_own_alone(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, stranger, digest):
        await stranger.upload("mine", folders[1])
        assert await owner.models() == [BASE, "secret"]
        assert await stranger.models() == [BASE, "mine"]
        for path in (ADAPTERS, "/v1/models", "/admin/v1/usage", "/metrics"):
            text = (await stranger.send("GET", path)).text
            assert digest not in text
            if path != "/metrics":
                assert "secret" not in text
        assert await owner.registry.models() == [BASE]  # the admin key acts for the default tenant


@alive
async def test_one_name_is_everybodys_own(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, stranger, digest):
        own = (await stranger.upload("secret", folders[1])).json()
        assert (own["revision"], own["digest"] != digest) == (1, True)
        assert (await owner.ask("secret")).json()["choices"] != (await stranger.ask("secret")).json()["choices"]
        assert (await stranger.send("DELETE", f"{ADAPTERS}/secret")).status_code == 200
        assert (await stranger.ask("secret")).status_code == 404
        assert (await owner.ask("secret")).status_code == 200


@alive
async def test_the_same_bytes_are_no_way_in(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, stranger, digest):
        assert (await stranger.upload("copy", folders[0])).json()["digest"] == digest
        assert (await stranger.ask(f"secret@sha256:{digest[:12]}")).status_code == 404
        await stranger.send("DELETE", f"{ADAPTERS}/copy")
        assert (await owner.ask("secret")).status_code == 200


@alive
async def test_a_key_kept_to_some_adapters_knows_of_no_other(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, _, _):
        await owner.upload("shown", folders[1])
        kept = await tenant(owner.registry, "owner", adapters=["shown", "later"])
        assert await kept.models() == [BASE, "shown"]
        assert [each["name"] for each in (await kept.send("GET", ADAPTERS)).json()["data"]] == ["shown"]
        assert (await kept.ask("shown")).status_code == 200
        assert told(await kept.ask("secret"), "secret") == told(await kept.ask("nobody"), "nobody")
        for name, folder in (("secret", folders[0]), ("nobody", folders[0])):
            assert (await kept.upload(name, folder)).status_code == 403
            assert (await kept.send("DELETE", f"{ADAPTERS}/{name}")).status_code == 404
        assert (await kept.upload("later", folders[2])).json()["state"] == "ready"


@alive
async def test_the_scope_admin_reaches_every_tenant_by_its_name(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, _, _):
        admin = owner.registry.http
        assert (await admin.get(f"{ADAPTERS}/secret")).status_code == 404
        assert (await admin.get(f"{ADAPTERS}/secret", params={"tenant": "owner"})).status_code == 200
        assert (await admin.delete(f"{ADAPTERS}/secret", params={"tenant": "owner"})).status_code == 200
        assert (await owner.ask("secret")).status_code == 404


@alive
async def test_a_tenant_goes_with_its_adapters_only_if_asked(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, _, digest):
        admin, store = owner.registry.http, owner.registry.store
        await owner.upload("second", folders[1])
        refused = (await admin.delete("/admin/v1/tenants/owner")).json()["error"]
        assert (refused["code"], "secret, second" in refused["message"]) == ("tenant_not_empty", False)
        assert "second, secret" in refused["message"]
        assert (await owner.ask("secret")).status_code == 200
        gone = await admin.delete("/admin/v1/tenants/owner", params={"adapters": "delete"})
        assert gone.json() == {"object": "tenant", "name": "owner", "deleted": True}
        assert (await owner.ask("secret")).status_code == 401
        assert digest not in store.digests()
        lines = (await admin.get("/admin/v1/audit", params={"tenant": "owner", "action": "delete"})).json()["data"]
        assert sorted((line["kind"], line["subject"]) for line in lines) == [
            ("adapter", "second"),
            ("adapter", "secret"),
            ("tenant", "owner"),
        ]


@alive
async def test_of_two_uploads_at_once_one_finds_the_last_place_taken(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, _, _):
        await owner.registry.http.patch("/admin/v1/tenants/owner", json={"max_adapters": 2})
        uploads = (owner.upload(f"new-{number}", folders[number]) for number in (1, 2, 3))
        assert sorted(answer.status_code for answer in await asyncio.gather(*uploads)) == [202, 409, 409]
        assert (await owner.registry.http.get("/admin/v1/tenants/owner")).json()["adapters"] == 2


@pytest.mark.parametrize("limit", ["max_adapters", "max_adapter_bytes"])
@alive
async def test_nobody_keeps_more_than_they_may(place: Place, folders: list[Path], limit: str) -> None:
    async with two(place, folders[0]) as (owner, _, _):
        admin = owner.registry.http
        size = (await admin.get("/admin/v1/tenants/owner")).json()["adapter_bytes"]
        most = {"max_adapters": 1, "max_adapter_bytes": size}[limit]
        await admin.patch("/admin/v1/tenants/owner", json={limit: most})
        refused = await owner.upload("second", folders[1])
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "quota_exceeded")
        assert await owner.models() == [BASE, "secret"]
        await admin.patch("/admin/v1/tenants/owner", json={limit: None})
        assert (await owner.upload("second", folders[1])).json()["state"] == "ready"
        kept = (await admin.get("/admin/v1/tenants/owner")).json()
        assert (kept["adapters"], kept["adapter_bytes"] > size) == (2, True)
