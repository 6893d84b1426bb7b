"""A tenant who wants more than its keys say: more scopes, other adapters, the answers of others, more of everything."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import string
from pathlib import Path

import httpx
import pytest
from aril.core.callers import Caller
from aril.core.errors import NotFound
from aril.core.metrics import render
from aril.lora.config import CONFIG_FILE, WEIGHTS_FILE
from builders.processes import ADMIN_KEY, started
from builders.registry import ADAPTERS, Place, alive, until
from builders.tenants import PROMPT, Tenant, tenant, two

KEYS, TENANTS = "/admin/v1/keys", "/admin/v1/tenants"
LESSER = [["infer"], ["adapters:read"], ["adapters:write"], ["infer", "adapters:read", "adapters:write"]]


@pytest.mark.parametrize("scopes", LESSER, ids="+".join)
@alive
async def test_no_key_but_the_operators_makes_or_strengthens_one(place: Place, scopes: list[str]) -> None:
    async with place.running() as registry:
        evil = await tenant(registry, "evil", scopes=scopes)
        victim = await tenant(registry, "victim")
        before = (await registry.http.get(KEYS)).json()["data"]
        stronger = {"name": "k", "scopes": ["admin"], "adapters": None, "tokens_per_minute": None}
        for method, path, body in (
            ("POST", KEYS, stronger),
            ("POST", KEYS, {**stronger, "tenant": "victim"}),
            ("PATCH", f"{KEYS}/{evil.id}", {"scopes": ["admin"]}),
            ("PATCH", f"{KEYS}/{evil.id}", {"expires": None, "adapters": None}),
            ("PATCH", f"{KEYS}/{victim.id}", {"scopes": ["infer"]}),
            ("POST", f"{KEYS}/{victim.id}/revoke", None),
            ("GET", f"{KEYS}/{evil.id}", None),
            ("GET", KEYS, None),
            ("PATCH", f"{TENANTS}/evil", {"max_adapters": None}),
            ("DELETE", f"{TENANTS}/victim?adapters=delete", None),
            ("GET", "/admin/v1/audit", None),
            ("GET", "/admin/v1/usage?tenant=victim", None),
            ("GET", f"{ADAPTERS}?tenant=victim", None),
        ):
            answer = await evil.send(method, path, **({} if body is None else {"json": body}))
            assert answer.status_code == 403, f"{method} {path}: {answer.text}"
        assert (await registry.http.get(KEYS)).json()["data"] == before


@alive
async def test_a_key_kept_to_one_adapter_reaches_no_other_by_any_name(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, _, digest):
        await owner.send("PUT", f"{ADAPTERS}/secret/aliases/prod", json={"revision": 1})
        kept = await tenant(owner.registry, "owner", adapters=["shown"])
        for end in ("", "@1", "@prod", "@default", f"@sha256:{digest}", f"@sha256:{digest[:8]}"):
            for name in (f"secret{end}", f"tiny:secret{end}"):
                assert (await owner.ask(name)).status_code == 200, name
                assert (await kept.ask(name)).status_code == 404, name
                assert (await kept.send("GET", f"/v1/models/{name}")).status_code == 404, name
        spec = {"size": 1, "sha256": "0" * 64}
        for method, path, body in (
            ("POST", ADAPTERS, {"name": "secret", "source": folders[1].as_uri()}),
            ("POST", "/admin/v1/uploads", {"name": "secret", "files": {CONFIG_FILE: spec, WEIGHTS_FILE: spec}}),
            ("POST", "/v1/load_lora_adapter", {"lora_name": "secret", "lora_path": str(folders[1])}),
            ("POST", "/v1/load_lora_adapter", {"lora_name": "secret", "lora_path": "/x", "load_inplace": True}),
            ("POST", "/v1/unload_lora_adapter", {"lora_name": "secret"}),
            ("PUT", f"{ADAPTERS}/secret/aliases/prod", {"revision": 1}),
            ("POST", f"{ADAPTERS}/secret/aliases/prod/rollback", None),
            ("PATCH", f"{ADAPTERS}/secret", {"description": "mine"}),
            ("POST", f"{ADAPTERS}/secret/deactivate", None),
            ("POST", f"{ADAPTERS}/secret/revisions/1/retire", None),
        ):
            answer = await kept.send(method, path, **({} if body is None else {"json": body}))
            assert answer.status_code in (403, 404), f"{method} {path}: {answer.text}"
        assert (await kept.upload("secret", folders[1])).status_code == 403
        assert len((await owner.send("GET", f"{ADAPTERS}/secret")).json()["revisions"]) == 1


@alive
async def test_only_the_operator_makes_an_adapter_public(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, stranger, _):
        assert (await owner.send("PATCH", f"{ADAPTERS}/secret", json={"public": True})).status_code == 403
        assert (await stranger.ask("secret")).status_code == 404


@alive
async def test_an_idempotency_key_is_ones_own(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, stranger, digest):
        sister = await tenant(owner.registry, "owner")
        said = {"Idempotency-Key": "one"}
        answers = []
        for who in (owner, stranger, sister):
            headers = who.headers | said
            answers.append(await who.registry.http.post(f"{ADAPTERS}/secret/aliases/default/rollback", headers=headers))
            answers.append(await who.registry.http.post(f"{ADAPTERS}/secret/activate", headers=headers))
        assert [answer.status_code for answer in answers] == [409, 200, 404, 404, 409, 200]
        assert digest not in answers[2].text + answers[3].text


@alive
async def test_an_etag_of_ones_own_opens_nothing_of_anothers(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, stranger, _):
        await stranger.upload("mine", folders[1])
        etag = (await stranger.send("GET", f"{ADAPTERS}/mine")).headers["etag"]
        assert etag == (await owner.send("GET", f"{ADAPTERS}/secret")).headers["etag"]
        for match in (etag, "*", '"999"'):
            answer = await stranger.registry.http.delete(
                f"{ADAPTERS}/secret", headers=stranger.headers | {"If-Match": match}
            )
            assert answer.status_code == 404


@alive
async def test_nothing_that_goes_wrong_is_left_running_in_the_books(sqlite_place: Place, folders: list[Path]) -> None:
    async with two(sqlite_place, folders[0]) as (owner, _, _):
        await owner.registry.http.patch(f"{KEYS}/{owner.id}", json={"concurrent_requests": 2})
        quotas = owner.registry.admin.books._quotas

        def running() -> int:
            return sum(spent.running for spent in quotas.spent().values())

        for body in ({"n": 0}, {"n": 10**9}, {"best_of": 3}, {"max_tokens": 10**9}, {"prompt": [-1]}, {"prompt": []}):
            answer = await owner.send("POST", "/v1/completions", json={"model": "secret", **PROMPT, **body})
            assert answer.status_code == 400, answer.text
            assert running() == 0, body
        for stream in (True, False):
            for _ in range(5):
                body = {"model": "secret", **PROMPT, "max_tokens": 30_000, "stream": stream}
                asked = asyncio.create_task(owner.send("POST", "/v1/completions", json=body))
                await until(lambda: running() == 1)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                await until(lambda: running() == 0)
        assert (await owner.ask("secret")).status_code == 200


@alive
async def test_ten_thousand_names_leave_nothing_behind(sqlite_place: Place, folders: list[Path]) -> None:
    async with two(sqlite_place, folders[0]) as (owner, stranger, _):
        await ask_for_names(stranger, 100)  # whatever is made once has been made
        gc.collect()
        series, objects = len(render().splitlines()), len(gc.get_objects())
        await ask_for_names(stranger, 400)
        catalog, caller = owner.registry.admin.catalog, Caller(name="key_x", tenant="stranger", tenant_id=3)
        for _ in range(10_000):
            with pytest.raises(NotFound):
                await catalog.resolve(any_name(), caller, lambda _header: None)
        gc.collect()
        assert len(render().splitlines()) == series
        assert len(gc.get_objects()) - objects < 2_000
        assert (await owner.ask("secret")).status_code == 200


def any_name() -> str:
    return "".join(random.choices(string.ascii_letters + "@:/._-\u0430", k=random.randint(9, 200)))


async def ask_for_names(who: Tenant, count: int) -> None:
    for _ in range(count):
        assert (await who.ask(any_name())).status_code == 404


@alive
async def test_what_a_caller_says_begins_no_header_and_no_formula(sqlite_place: Place, folders: list[Path]) -> None:
    async with two(sqlite_place, folders[0]) as (owner, _, _):
        for odd in (
            "secret\r\nx-evil: 1",
            "secret@default\r\nset-cookie: a=b",
            "=cmd|' /C calc'!A0",
            "+1",
            "-1",
            "@SUM(1)",
        ):
            answer = await owner.ask(odd)
            assert (answer.status_code, "x-aril-adapter" in answer.headers) == (404, False)
            assert not {"x-evil", "set-cookie"} & set(answer.headers)
        answer = await owner.ask("tiny:secret@default")
        assert answer.headers["x-aril-adapter"] == answer.json()["system_fingerprint"] == "secret@1"
        for group_by in ("day,tenant,key,model,revision", "model", "key"):
            exported = await owner.send("GET", "/admin/v1/usage", params={"format": "csv", "group_by": group_by})
            cells = re.split(r"[,\r\n]+", exported.text.strip())
            assert not [cell for cell in cells if cell[0] in "=+-@\t\"'"], exported.text


@pytest.mark.parametrize("prefix", ["", "/v1", "/admin", "/admin/v1", "/api", "/v1/..", "//"])
@alive
async def test_a_root_path_moves_no_door(sqlite_place: Place, prefix: str) -> None:
    async with sqlite_place.running(api_keys=("x",)) as registry:
        app = registry.http._transport.app  # type: ignore[attr-defined]
        transport = httpx.ASGITransport(app, root_path=prefix, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://aril") as nobody:
            routes = [ADAPTERS, KEYS, TENANTS, "/v1/models", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"]
            for path in [*routes, "/admin/v1/uploads", "/admin/v1/usage", "/admin/v1/audit", "/v1/completions"]:
                for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
                    for spelt in (path, prefix + path, f"{path}/", path.replace("/v1/", "//v1//"), f"/x/..{path}"):
                        answer = await nobody.request(method, f"http://aril{spelt}", json={"lora_name": "a"})
                        assert answer.status_code >= 300, f"{method} {spelt}: {answer.text}"


@alive
async def test_a_stream_whose_key_is_revoked_runs_to_its_end_and_is_the_last(place: Place, folders: list[Path]) -> None:
    async with two(place, folders[0]) as (owner, _, _):
        body = {"model": "secret", **PROMPT, "max_tokens": 400, "stream": True}
        asked = asyncio.create_task(owner.send("POST", "/v1/completions", json=body))
        await until(lambda: owner.registry.engine.status().running > 0)
        await owner.registry.http.post(f"{KEYS}/{owner.id}/revoke")
        assert (await owner.ask("secret")).status_code == 401
        events = [line for line in (await asked).text.splitlines() if line]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


def test_no_key_and_no_control_character_comes_into_the_log(base: Path, folders: list[Path], tmp_path: Path) -> None:
    with started(base, tmp_path / "state", []) as server:
        made = server.http.post(KEYS, json={"name": "k", "scopes": ["infer", "adapters:read", "adapters:write"]})
        key, names = made.json()["key"], "\x1b[31m\nFAKE event=admin_key"
        for path in ("/v1/models", ADAPTERS, "/health", f"/{key}", "/nowhere", "/v1/load_lora_adapter"):
            for parameter in ("api_key", "k"):
                for secret in (key, ADMIN_KEY, "aril-wrong"):
                    server.http.get(path, params={parameter: secret})
                    server.http.post(path, params={parameter: secret}, headers={"Authorization": f"Basic {secret}"})
                    server.http.get(path, headers={"Authorization": f"Bearer {secret}x"})
        server.http.post("/v1/completions", json={"model": names, "prompt": "a", names: 1})
        server.http.post(ADAPTERS, json={"name": "a", "source": f"file:///{names}", "note": names})
        server.upload("a", folders[0])
        server.stop()
    log = (tmp_path / "state" / "log").read_text()
    assert "adapter=a" in log  # the log is at work
    assert not [secret for secret in (key, ADMIN_KEY, "aril-wrong") if secret in log]
    assert all(line.isprintable() and not line.startswith("FAKE") for line in log.splitlines())
