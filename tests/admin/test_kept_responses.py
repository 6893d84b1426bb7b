"""/v1/responses over a registry: tenants, limits, crashes, and a server that keeps none; keys of /v1/messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import httpx
import pytest
from aril.engine.params import SamplingParams
from aril.server.responses import shelf
from builders.registry import Place, Registry, alive, until
from builders.tenants import Tenant, tenant

ASK = "what is an aril?"
BODY = {"model": "tiny", "input": ASK, "background": True, "ignore_eos": True, "max_output_tokens": 20_000}
PATH = "/v1/responses"
ROWS = 64  # that the engine has


@asynccontextmanager
async def busy(registry: Registry, num_rows: int) -> AsyncIterator[None]:
    """While somebody waits for so many answers, none of which ends."""
    params = SamplingParams(n=num_rows, max_tokens=20_000, ignore_eos=True)
    async with aclosing(registry.engine.generate(f"busy-{num_rows}", [5], params)) as chunks:  # type: ignore[type-var]
        await anext(chunks)
        yield


async def status_when(http: httpx.AsyncClient, id: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The response as soon as `holds`."""
    async with asyncio.timeout(20):
        while not holds(found := (await http.get(f"{PATH}/{id}")).json()):
            await asyncio.sleep(0.001)
    return dict(found)


@alive
async def test_what_goes_wrong_later_is_told_by_the_response(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        await registry.http.post("/admin/v1/tenants", json={"name": "t", "requests_per_minute": 1})
        made = await registry.http.post("/admin/v1/keys", json={"name": "k", "tenant": "t", "scopes": ["infer"]})
        registry.http.headers["Authorization"] = f"Bearer {made.json()['key']}"
        for _ in range(2):
            begun = await registry.http.post(PATH, json={**BODY, "max_output_tokens": 2})
        found = await status_when(registry.http, begun.json()["id"], lambda found: found["status"] != "in_progress")
        assert (found["status"], found["error"]["code"]) == ("failed", "rate_limit_exceeded")


@alive
async def test_a_crash_lets_it_fail(sqlite_place: Place) -> None:
    async with sqlite_place.running(crash=True) as registry:
        id = (await registry.http.post(PATH, json=BODY)).json()["id"]
        await status_when(registry.http, id, lambda found: found["status"] == "in_progress")
    async with sqlite_place.running() as registry:
        found = (await registry.http.get(f"{PATH}/{id}")).json()
        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")


@alive
async def test_another_tenant_sees_nothing_of_a_response(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        keys = []
        for name in ("ours", "theirs"):
            await registry.http.post("/admin/v1/tenants", json={"name": name})
            made = await registry.http.post("/admin/v1/keys", json={"name": "k", "tenant": name, "scopes": ["infer"]})
            keys.append({"Authorization": f"Bearer {made.json()['key']}"})
        id = (await registry.http.post(PATH, json=BODY, headers=keys[0])).json()["id"]
        for method, path in (
            ("GET", ""),
            ("GET", "?stream=true"),
            ("POST", "/cancel"),
            ("DELETE", ""),
            ("GET", "/input_items"),
        ):
            found, never = [
                await registry.http.request(method, f"{PATH}/{each}{path}", headers=keys[1])
                for each in (id, "resp_never")
            ]
            assert found.status_code == never.status_code == 404
            assert found.text == never.text.replace("resp_never", id)
        body = {"model": "tiny", "input": "go on", "previous_response_id": id}
        assert (await registry.http.post(PATH, json=body, headers=keys[1])).status_code == 400
        assert (await registry.http.post(f"{PATH}/{id}/cancel", headers=keys[0])).json()["status"] == "cancelled"


@alive
async def test_whoever_waits_passes_what_is_made_in_the_background(sqlite_place: Place) -> None:
    body = {**BODY, "max_output_tokens": 300}
    async with sqlite_place.running() as registry, AsyncExitStack() as last:
        ours, theirs = await tenant(registry, "ours"), await tenant(registry, "theirs")
        await last.enter_async_context(busy(registry, 1))
        async with busy(registry, ROWS - 1):
            ids = [(await ours.send("POST", PATH, json=body)).json()["id"] for _ in range(2)]
            asked = asyncio.create_task(theirs.ask("tiny"))
            await until(lambda: registry.engine.status().waiting == 3)
            await last.aclose()
            assert (await asked).status_code == 200
            found = [(await ours.send("GET", f"{PATH}/{id}")).json()["status"] for id in ids]
    assert found == ["in_progress"] * 2


@alive
async def test_tenants_take_turns_in_the_background(sqlite_place: Place) -> None:
    short = {**BODY, "max_output_tokens": 2}
    async with sqlite_place.running() as registry, AsyncExitStack() as last:
        ours, theirs = await tenant(registry, "ours"), await tenant(registry, "theirs")
        await last.enter_async_context(busy(registry, 1))
        async with busy(registry, ROWS - 1):
            for who, body in ((ours, short), (ours, BODY), (ours, BODY), (theirs, short)):
                begun = await who.send("POST", PATH, json=body)
            await until(lambda: registry.engine.status().waiting == 4)
            await last.aclose()
            registry.http.headers.update(theirs.headers)
            await status_when(registry.http, begun.json()["id"], lambda found: found["status"] == "incomplete")


@alive
async def test_a_tenant_that_makes_too_many_is_told_when_to_come_back(
    sqlite_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "MOST_OF_ONE", 1)
    async with sqlite_place.running() as registry:
        ours, theirs = await tenant(registry, "ours"), await tenant(registry, "theirs")
        begun = (await ours.send("POST", PATH, json=BODY)).json()
        refused = await ours.send("POST", PATH, json=BODY)
        others = await theirs.send("POST", PATH, json={**BODY, "max_output_tokens": 2})
        await ours.send("POST", f"{PATH}/{begun['id']}/cancel")
        again = await until_answered(ours, {**BODY, "max_output_tokens": 2})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (429, "too_many_responses", "background")
    assert "'ours'" in error["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert (others.status_code, again.status_code) == (200, 200)


async def until_answered(by: Tenant, body: dict[str, Any]) -> httpx.Response:
    """The answer once it is no 429; what was cancelled gives its place back a little later."""
    async with asyncio.timeout(20):
        while (answer := await by.send("POST", PATH, json=body)).status_code == 429:
            await asyncio.sleep(0.001)
    return answer


@alive
async def test_a_server_that_keeps_nothing_says_so(sqlite_place: Place) -> None:
    async with sqlite_place.running(response_days=0) as registry:
        assert registry.admin.responses is None
        for wrong in ({"store": True}, {"background": True}, {"previous_response_id": "resp_1"}):
            answer = await registry.http.post(PATH, json={"model": "tiny", "input": ASK, **wrong})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == next(iter(wrong))
            assert "--response-days" in answer.text
        made = (await registry.http.post(PATH, json={"model": "tiny", "input": ASK, "max_output_tokens": 2})).json()
        assert made["store"] is False
        assert (await registry.http.get(f"{PATH}/{made['id']}")).status_code == 404


@alive
async def test_a_key_may_come_as_anthropics_clients_send_it(sqlite_place: Place) -> None:
    async with sqlite_place.running(api_keys=("only-infers",)) as registry:
        del registry.http.headers["Authorization"]
        body = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
        statuses = {}
        for key in ("only-infers", "wrong", None):
            headers = {} if key is None else {"x-api-key": key}
            answer = await registry.http.post("/v1/messages", json=body, headers=headers)
            statuses[key] = (answer.status_code, answer.json().get("error", {}).get("type"))
        wrong = (401, "authentication_error")
        assert statuses == {"only-infers": (200, None), "wrong": wrong, None: wrong}
