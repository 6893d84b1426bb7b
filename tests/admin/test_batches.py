"""Batches: every line has one answer, whatever ends in the middle; nobody who waits stands behind them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aril.admin_api.batches import reading, rows, worker
from aril.admin_api.tables import Batch, BatchState
from builders.batches import (
    COMPLETIONS,
    LONG,
    answered,
    begun,
    content,
    ended,
    looked_at,
    request,
    requests,
    uploaded,
    written,
)
from builders.registry import BASE, Place, Registry, alive, until
from builders.tenants import tenant
from sqlalchemy import update


def ids_of(lines: list[dict[str, Any]]) -> list[str]:
    """Whom they answer."""
    return [line["custom_id"] for line in lines]


async def changed(registry: Registry, id: str, **values: Any) -> None:
    """As if time had passed."""
    change = update(Batch).where(Batch.id == id).values(**values)
    await registry.admin.database.run(lambda session: session.execute(change))


@alive
async def test_every_line_has_its_answer_in_the_order_of_the_file(place: Place) -> None:
    async with place.running() as registry:
        id = await begun(registry, requests(5) + b"\n" + written([request("wrong", temperature=-1)]))
        batch = await ended(registry, id)
        assert (batch["status"], batch["model"]) == ("completed", BASE)
        assert batch["request_counts"] == {"total": 6, "completed": 5, "failed": 1}
        lines, faults = [await content(registry, batch[f"{kind}_file_id"]) for kind in ("output", "error")]
    assert ids_of(lines) == ["r0", "r1", "r2", "r3", "r4"]
    assert ids_of(faults) == ["wrong"]
    assert all(line["response"]["status_code"] == 200 and line["error"] is None for line in lines)
    assert faults[0]["response"]["status_code"] == 400
    assert faults[0]["response"]["body"]["error"]["param"] == "temperature"
    assert batch["usage"]["total_tokens"] == sum(line["response"]["body"]["usage"]["total_tokens"] for line in lines)


@alive
async def test_a_line_is_answered_as_a_request_is(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        asked = request("r", prompt=[3, 4, 5, 6], max_tokens=9, logprobs=2)
        direct = await registry.http.post(COMPLETIONS, json=asked["body"])
        batch = await ended(registry, await begun(registry, written([asked])))
        (line,) = await content(registry, batch["output_file_id"])
    assert line["response"]["body"]["choices"] == direct.json()["choices"]
    assert line["response"]["request_id"]


@alive
async def test_each_fault_of_a_file_is_told_with_its_line(place: Place) -> None:
    good = request("same")
    faulty = [
        b"{no json",
        b"[1]",
        json.dumps({**good, "custom_id": None}).encode(),
        json.dumps({key: value for key, value in good.items() if key != "custom_id"}).encode(),
        json.dumps(good).encode(),
        json.dumps(good).encode(),
        json.dumps({**request("url"), "url": "/v1/embeddings"}).encode(),
        json.dumps({**request("method"), "method": "GET"}).encode(),
        json.dumps(request("stream", stream=True)).encode(),
        json.dumps(request("background", background=True)).encode(),
        json.dumps({**request("more"), "priority": 1}).encode(),
        json.dumps({**request("x" * 600)}).encode(),
    ]
    async with place.running() as registry:
        batch = await ended(registry, await begun(registry, b"\n".join(faulty)))
        assert batch["status"] == "failed"
        assert batch["failed_at"] is not None
        assert batch["output_file_id"] is batch["error_file_id"] is None
        assert batch["request_counts"]["completed"] == 0
    assert [(error["line"], error["code"], error["param"]) for error in batch["errors"]["data"]] == [
        (1, "invalid_json_line", None),
        (2, "invalid_json_line", None),
        (3, "invalid_type", "custom_id"),
        (4, "missing_required_parameter", "custom_id"),
        (6, "duplicate_custom_id", "custom_id"),
        (7, "invalid_url", "url"),
        (8, "invalid_method", "method"),
        (9, "unsupported_value", "body.stream"),
        (10, "unsupported_value", "body.background"),
        (11, "unknown_field", "priority"),
        (12, "invalid_custom_id", "custom_id"),
    ]


@alive
async def test_a_file_without_lines_and_one_with_too_many_are_refused(
    sqlite_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_LINES", 3)
    async with sqlite_place.running() as registry:
        empty, many = [await ended(registry, await begun(registry, data)) for data in (b"\n\n", requests(4))]
    assert [error["code"] for error in empty["errors"]["data"]] == ["empty_file"]
    assert [(error["code"], error["line"]) for error in many["errors"]["data"]] == [("too_many_lines", 4)]


@alive
async def test_a_line_may_lie_in_several_pieces_of_its_file(sqlite_place: Place) -> None:
    long = request("long", user="u" * (3 << 20))
    async with sqlite_place.running() as registry:
        batch = await ended(
            registry, await begun(registry, requests(2) + written([long]) + requests(1, prompt=[1])[:-1])
        )
        assert [error["code"] for error in batch["errors"]["data"]] == ["duplicate_custom_id"]
        batch = await ended(registry, await begun(registry, requests(2) + written([long])[:-1]))
        assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"endpoint": "/v1/models"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"input_file_id": "file-0"}, 404, "input_file_id"),
        ({"metadata": {"a": 1}}, 400, "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, 400, "metadata.a"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after.seconds"),
    ],
)
@alive
async def test_a_fault_in_a_new_batch_is_named(
    sqlite_place: Place, change: dict[str, Any], status: int, param: str
) -> None:
    async with sqlite_place.running() as registry:
        asked = {"input_file_id": await uploaded(registry, requests(1)), "endpoint": COMPLETIONS}
        answer = await registry.send("POST", "/v1/batches", json={**asked, "completion_window": "24h", **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


@alive
async def test_a_batch_that_says_it_is_no_json_is_not_made(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        asked = {"input_file_id": await uploaded(registry, requests(1)), "endpoint": COMPLETIONS}
        headers = {"Content-Type": "text/plain"}  # what any page may send, where no key is asked for
        answer = await registry.http.post("/v1/batches", content=json.dumps(asked).encode(), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
        assert (await registry.http.get("/v1/batches")).json()["data"] == []


@alive
async def test_what_is_said_of_a_batch_is_kept_and_other_fields_are_listed(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        expiry = {"anchor": "created_at", "seconds": 7200}
        fields = {"metadata": {"job": "night"}, "output_expires_after": expiry}
        batch = await ended(registry, await begun(registry, requests(1), **fields))
        output = (await registry.send("GET", f"/v1/files/{batch['output_file_id']}")).json()
        asked = {"input_file_id": batch["input_file_id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
        answer = await registry.send("POST", "/v1/batches", json={**asked, "colour": "red"})
    assert batch["metadata"] == {"job": "night"}
    assert output["purpose"] == "batch_output"
    assert output["expires_at"] - batch["completed_at"] in (7200, 7201)
    assert answer.headers["x-aril-ignored-fields"] == "colour"


@alive
async def test_a_cancelled_batch_ends_soon_and_keeps_the_answers_that_there_are(place: Place) -> None:
    async with place.running() as registry:
        id = await begun(registry, requests(2) + written([request("long", max_tokens=LONG)]))
        await answered(registry, id, 2)
        told = (await registry.send("POST", f"/v1/batches/{id}/cancel")).json()
        assert told["status"] == "cancelling"
        batch = await ended(registry, id)
        await until(lambda: registry.engine.status().running == 0)
        assert batch["status"] == "cancelled"
        assert batch["cancelled_at"] >= batch["cancelling_at"]
        assert ids_of(await content(registry, batch["output_file_id"])) == ["r0", "r1"]
        again = await registry.send("POST", f"/v1/batches/{id}/cancel")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "batch_ended")


@alive
async def test_lines_without_an_answer_by_the_end_of_the_window_are_told_so(place: Place) -> None:
    async with place.running(crash=True) as registry:
        id = await begun(registry, requests(1) + written([request("long", max_tokens=LONG)]))
        await answered(registry, id, 1)
        await registry.admin.batches.close()
        await changed(registry, id, expires=1)
    async with place.running() as registry:
        batch = await ended(registry, id)
        (late,) = await content(registry, batch["error_file_id"])
    assert (batch["status"], batch["request_counts"]) == ("expired", {"total": 2, "completed": 1, "failed": 1})
    assert (late["custom_id"], late["response"], late["error"]["code"]) == ("long", None, "batch_expired")


@alive
async def test_a_batch_whose_last_step_comes_after_its_window_is_complete(place: Place) -> None:
    async with place.running() as registry:
        before = await ended(registry, await begun(registry, requests(2)))
        await changed(registry, before["id"], state=BatchState.FINALIZING, expires=1)
        registry.admin.batches.wake()
        batch = await ended(registry, before["id"])
    assert (batch["status"], batch["request_counts"]) == ("completed", before["request_counts"])
    assert batch["output_file_id"] == before["output_file_id"]


@alive
async def test_a_batch_whose_window_ends_after_its_last_answer_is_complete(place: Place) -> None:
    async with place.running() as registry:
        before = await ended(registry, await begun(registry, requests(2)))
        await changed(registry, before["id"], state=BatchState.IN_PROGRESS, expires=1)
        registry.admin.batches.wake()
        batch = await ended(registry, before["id"])
    assert (batch["status"], batch["request_counts"]) == ("completed", before["request_counts"])
    assert batch["output_file_id"] == before["output_file_id"]


@pytest.mark.parametrize("at_once", [1, 2, 3])
@alive
async def test_however_many_lines_are_late_each_is_told_so_once(
    sqlite_place: Place, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(worker, "EXPIRED_AT_ONCE", at_once)
    async with sqlite_place.running(crash=True) as registry:
        id = await begun(registry, requests(3, max_tokens=LONG))
        await until(lambda: registry.engine.status().running == 3)
        await registry.admin.batches.close()
        await changed(registry, id, expires=1)
    async with sqlite_place.running() as registry:
        batch = await ended(registry, id)
        late = await content(registry, batch["error_file_id"])
    assert (batch["status"], batch["request_counts"]) == ("expired", {"total": 3, "completed": 0, "failed": 3})
    assert ids_of(late) == ["r0", "r1", "r2"]


@alive
async def test_a_server_that_was_overtaken_writes_no_second_answer(place: Place) -> None:
    async with place.running(crash=True, batch_lines=2) as registry:
        id = await begun(registry, requests(30, max_tokens=16))
        await answered(registry, id, 1)
        await changed(registry, id, held_until=0)
        async with place.running() as other:  # while the first, which knows nothing of it, goes on
            batch = await ended(other, id)
            lines = await content(other, batch["output_file_id"])
    assert batch["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
    assert ids_of(lines) == [f"r{at}" for at in range(30)]


@alive
async def test_a_batch_that_every_server_dies_of_fails(sqlite_place: Place) -> None:
    async with sqlite_place.running(crash=True) as registry:
        id = await begun(registry, written([request("long", max_tokens=LONG)]))
        await until(lambda: registry.engine.status().running == 1)
        await registry.admin.batches.close()
        await changed(registry, id, attempts=8)
    async with sqlite_place.running() as registry:
        batch = await ended(registry, id)
    assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "server_error")


@alive
async def test_a_server_that_ends_well_lets_go_of_its_batches(place: Place) -> None:
    async with place.running() as registry:
        id = await begun(registry, requests(1) + written([request("long", max_tokens=LONG)]))
        await answered(registry, id, 1)
    async with place.running() as registry:
        await until(lambda: registry.engine.status().running == 1)  # at once: no lease is waited for
        row = await registry.admin.database.run(lambda session: session.get_one(Batch, id))
        assert row.attempts == 1
        await registry.send("POST", f"/v1/batches/{id}/cancel")
        batch = await ended(registry, id)
    assert batch["request_counts"]["completed"] == 1


@alive
async def test_a_batch_of_long_ago_is_forgotten_and_its_files_are_not(place: Place) -> None:
    async with place.running() as registry:
        batch = await ended(registry, await begun(registry, requests(1)))
        await changed(registry, batch["id"], created=1)
        await registry.admin.batches.sweep()
        assert (await registry.send("GET", f"/v1/batches/{batch['id']}")).status_code == 404
        assert len(await content(registry, batch["output_file_id"])) == 1


@alive
async def test_whoever_waits_passes_the_lines_of_batches(sqlite_place: Place) -> None:
    async with sqlite_place.running(batch_lines=64) as registry:
        id = await begun(registry, requests(64, max_tokens=LONG))
        await until(lambda: registry.engine.status().running == 64)  # all the rows that there are
        for _ in range(3):
            answer = await registry.http.post(COMPLETIONS, json=request("now")["body"])
            assert answer.status_code == 200
        assert (await looked_at(registry, id))["request_counts"]["completed"] == 0
        await registry.send("POST", f"/v1/batches/{id}/cancel")
        await ended(registry, id)


@alive
async def test_a_batch_is_on_the_account_of_the_key_that_made_it(place: Place) -> None:
    async with place.running() as registry:
        someone = await tenant(registry, "someone")
        await ended(someone, await begun(someone, requests(3)))
        await registry.admin.books.flush()
        usage = (await registry.send("GET", "/admin/v1/usage?group_by=key&tenant=someone")).json()["data"]
    assert [(line["key"], line["requests"], line["completion_tokens"]) for line in usage] == [(someone.id, 3, 12)]


@alive
async def test_limits_of_the_key_make_lines_wait_and_fail_none(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        slow = await tenant(registry, "slow", concurrent_requests=1)
        batch = await ended(slow, await begun(slow, requests(3, max_tokens=64)))
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


@alive
async def test_a_revoked_key_stops_its_batches(place: Place) -> None:
    async with place.running(batch_lines=1) as registry:
        someone, friend = await tenant(registry, "someone"), await tenant(registry, "someone")
        id = await begun(someone, requests(2) + written([request("long", max_tokens=2000), request("never")]))
        await answered(someone, id, 2)
        await registry.send("POST", f"/admin/v1/keys/{someone.id}/revoke")
        batch = await ended(friend, id)
        lines = await content(friend, batch["output_file_id"])
    assert batch["status"] == "failed"
    assert batch["errors"]["data"][0]["code"] == "caller_refused"
    assert "revoked" in batch["errors"]["data"][0]["message"]
    assert ids_of(lines) == ["r0", "r1", "long"]


@alive
async def test_a_deleted_tenant_takes_its_batches_and_files_along(place: Place) -> None:
    async with place.running() as registry:
        someone = await tenant(registry, "someone")
        await begun(someone, written([request("long", max_tokens=LONG)]))
        await until(lambda: registry.engine.status().running == 1)
        assert (await registry.send("DELETE", "/admin/v1/tenants/someone")).is_success
        await until(lambda: registry.engine.status().running == 0)
        left = await registry.admin.database.run(lambda session: session.query(Batch).count())
    assert left == 0


@alive
async def test_a_batch_of_another_tenant_looks_like_none(place: Place) -> None:
    async with place.running() as registry:
        owner, stranger = [await tenant(registry, name) for name in ("owner", "stranger")]
        id = await begun(owner, requests(1))
        await ended(owner, id)
        for method, path in (("GET", ""), ("POST", "/cancel")):
            theirs = await stranger.send(method, f"/v1/batches/{id}{path}")
            none = await stranger.send(method, f"/v1/batches/{id[:-1]}x{path}")
            assert (theirs.status_code, theirs.json()) == (404, json.loads(none.text.replace(f"{id[:-1]}x", id)))
        assert (await stranger.send("GET", "/v1/batches")).json()["data"] == []


@alive
async def test_batches_are_listed_page_by_page_the_newest_first(place: Place) -> None:
    async with place.running() as registry:
        made = [await begun(registry, requests(1)) for _ in range(5)]
        pages, after = [], ""
        while True:
            page = (await registry.send("GET", f"/v1/batches?limit=2{after}")).json()
            pages.append([batch["id"] for batch in page["data"]])
            after = f"&after={page['last_id']}"
            if not page["has_more"]:
                break
        for id in made:
            await ended(registry, id)
    assert pages == [made[:2:-1], made[2:0:-1], made[:1]]


@alive
async def test_no_more_batches_are_taken_than_may_be_under_way(
    sqlite_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MOST_UNDER_WAY", 1)
    async with sqlite_place.running() as registry:
        id = await begun(registry, requests(1, max_tokens=LONG))
        asked = {"input_file_id": await uploaded(registry, b"x"), "endpoint": COMPLETIONS, "completion_window": "24h"}
        answer = await registry.send("POST", "/v1/batches", json=asked)
        await registry.send("POST", f"/v1/batches/{id}/cancel")
        await ended(registry, id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_batches")
