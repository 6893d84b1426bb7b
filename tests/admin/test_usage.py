"""Usage: what every request came to, counted once, whatever happens between two flushes; told to whom it concerns."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from aril.admin_api import usage
from aril.admin_api.books import Books
from aril.admin_api.db import Database
from aril.admin_api.keyring import Limits
from aril.admin_api.migrate import upgrade
from aril.admin_api.quotas import Quotas
from aril.admin_api.tables import Spending, Usage
from aril.admin_api.usage import COUNTS, Counts, Line, Question
from aril.core.callers import Caller
from aril.core.errors import RateLimited, Unavailable
from aril.engine.metering import Outcome, Work
from aril.engine.params import SamplingParams
from aril.lora.adapter import AdapterRef
from aril.lora.catalog import Resolution
from builders.registry import BASE, Place, Registry, alive
from sqlalchemy import select, text

USAGE = "/admin/v1/usage"
ACME = Caller(name="key_a", tenant="acme")
PIRATE = Resolution(ref=AdapterRef("pirate", 3, "d" * 64), speaker="pirate@3")
OUTCOME = Outcome(prompt_tokens=10, cached_tokens=4, completion_tokens=5)


@pytest.fixture
def database(database_url: str) -> Any:
    found = Database(database_url)
    upgrade(found)
    yield found
    found.close()


def books_of(database: Database, limits: Limits | None = None, **options: Any) -> Books:
    """The books of one server, which nothing flushes but the test; `limits` are those of the tenant acme."""
    known = {"tenant:acme": limits or Limits()}
    return Books(database, Quotas(lambda subject: known.get(subject, Limits())), **options)


def work(resolution: Resolution = PIRATE, caller: Caller = ACME) -> Work:
    return Work(caller=caller, resolution=resolution, prompts=[[1] * 10], params=[SamplingParams(max_tokens=5)])


def read(database: Database, **asked: Any) -> list[dict[str, Any]]:
    """What the database says."""
    return database.transact(lambda session: usage.read(session, Question(**asked), None, 1000))


@alive
async def test_requests_are_counted_by_day_key_and_revision(database: Database) -> None:
    books = books_of(database)
    for _ in range(3):
        books.admit(work()).end(OUTCOME)
    books.admit(work()).end(Outcome(error="engine_dead"))
    books.admit(work()).end(Outcome(prompt_tokens=10, completion_tokens=1, error="client_gone"))
    books.admit(work(Resolution(ref=None, speaker="tiny"))).end(OUTCOME)
    assert read(database) == []
    await books.flush()
    counts = [dict(zip(COUNTS, values, strict=True)) for values in ((5, 1, 40, 12, 16), (1, 0, 10, 4, 5))]
    line = {"day": usage.today(), "tenant": "acme", "key": "key_a"}
    assert read(database) == [
        {**line, "model": "pirate", "revision": 3, **counts[0]},
        {**line, "model": "tiny", "revision": 0, **counts[1]},
    ]


@alive
async def test_batches_of_several_servers_add_up(database: Database) -> None:
    servers = [books_of(database) for _ in range(3)]
    for _ in range(4):
        for books in servers:
            books.admit(work()).end(OUTCOME)
            await books.flush()
    assert [line["requests"] for line in read(database)] == [12]


@alive
async def test_a_batch_that_cannot_be_written_is_kept(database: Database) -> None:
    books = books_of(database)
    books.admit(work()).end(OUTCOME)
    database.transact(lambda session: session.execute(text("ALTER TABLE usage RENAME TO away")))
    with pytest.raises(Exception, match="usage"):
        await books.flush()
    books.admit(work()).end(OUTCOME)
    database.transact(lambda session: session.execute(text("ALTER TABLE away RENAME TO usage")))
    await books.flush()
    assert [line["requests"] for line in read(database)] == [2]


def test_a_batch_whose_commit_was_not_heard_of_counts_once(database: Database) -> None:
    batch = {Line(usage.today(), "acme", "key_a", "pirate", 3): Counts(requests=7)}
    for number in (1, 1, 2, 2, 1):
        database.transact(lambda session, number=number: usage.add(session, "a", number, batch))
    database.transact(lambda session: usage.add(session, "b", 1, batch))
    assert [line["requests"] for line in read(database)] == [21]


@alive
async def test_what_has_ended_is_written_before_the_books_close(database: Database) -> None:
    books = books_of(database, seconds=1000)
    books.start()
    books.admit(work()).end(OUTCOME)
    await books.close()
    assert [line["requests"] for line in read(database)] == [1]


@alive
async def test_observers_hear_of_every_end(database: Database) -> None:
    heard = []

    class Observer:
        def ended(self, work: Work, outcome: Outcome) -> None:
            heard.append((work.caller.name, outcome))

    books = books_of(database, observers=[Observer()])
    books.admit(work()).end(OUTCOME)
    assert heard == [("key_a", OUTCOME)]


@alive
async def test_an_idle_server_writes_nothing(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/r.sqlite3")
    upgrade(database)
    books = books_of(database)
    await books.flush()
    before = (tmp_path / "r.sqlite3-wal").stat().st_mtime_ns
    await books.flush()
    assert (tmp_path / "r.sqlite3-wal").stat().st_mtime_ns == before
    database.close()


@alive
async def test_servers_share_a_limit_after_their_next_flush(database: Database) -> None:
    limits = Limits(requests_per_minute=5, tokens_per_minute=1000, concurrent_requests=4)
    first, second = books_of(database, limits), books_of(database, limits)
    running = [first.admit(work()) for _ in range(3)]
    await first.flush()
    await second.flush()
    assert second.admit(work()).headers["x-ratelimit-remaining-requests"] == "1"
    with pytest.raises(RateLimited, match="at once"):
        second.admit(work())
    for permit in running:
        permit.end(OUTCOME)
    await first.flush()
    await second.flush()
    second.admit(work())
    with pytest.raises(RateLimited, match="requests per minute"):
        second.admit(work())


@alive
async def test_a_server_that_starts_again_knows_what_was_spent(database: Database) -> None:
    limits = Limits(requests_per_minute=3, concurrent_requests=10)
    before = books_of(database, limits)
    for _ in range(3):
        before.admit(work())  # never to end: the server is killed
    await before.flush()
    after = books_of(database, limits)
    await after.flush()
    with pytest.raises(RateLimited, match="requests per minute"):
        after.admit(work())
    database.transact(lambda session: [setattr(row, "at", row.at - 30) for row in session.scalars(select(Spending))])
    assert database.transact(lambda session: usage.elsewhere(session, "x"))["tenant:acme"].running == 0
    database.transact(lambda session: [setattr(row, "at", row.at - 31) for row in session.scalars(select(Spending))])
    await after.flush()
    after.admit(work())


def test_what_is_long_past_is_swept(database: Database) -> None:
    database.transact(lambda session: session.add(Spending(server="a", subject="b", at=1, **ZEROS)))
    database.transact(usage.sweep)
    assert database.transact(lambda session: session.scalars(select(Spending)).all()) == []


ZEROS = {"requests": 0, "tokens": 0, "running": 0, "reserved": 0}


async def ask(registry: Registry, secret: str, model: str = BASE, **body: Any) -> int:
    """A completion of 4 tokens for who holds a key."""
    headers = {"Authorization": f"Bearer {secret}"}
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, **body}
    return (await registry.http.post("/v1/completions", json=body, headers=headers)).status_code


async def made_key(registry: Registry, **body: Any) -> Any:
    return (await registry.http.post("/admin/v1/keys", json={"name": "k", **body})).json()


@alive
async def test_usage_is_told_at_once_and_by_the_groups_asked_for(place: Place) -> None:
    async with place.running() as registry:
        await registry.http.post("/admin/v1/tenants", json={"name": "acme"})
        keys = [await made_key(registry, tenant=tenant) for tenant in ("acme", "acme", "default")]
        for key, times in zip(keys, (1, 2, 3), strict=True):
            for _ in range(times):
                assert await ask(registry, key["key"]) == 200
        whole = (await registry.http.get(USAGE)).json()
        assert whole["group_by"] == ["day", "tenant", "key", "model", "revision"]
        assert {line["key"]: line["requests"] for line in whole["data"]} == {
            key["id"]: times for key, times in zip(keys, (1, 2, 3), strict=True)
        }
        grouped = (await registry.http.get(USAGE, params={"group_by": "tenant"})).json()["data"]
        told = [
            (line["tenant"], line["requests"], line["prompt_tokens"], line["completion_tokens"]) for line in grouped
        ]
        assert told == [("acme", 3, 9, 12), ("default", 3, 9, 12)]
        one = (await registry.http.get(USAGE, params={"tenant": "acme", "key": keys[0]["id"]})).json()["data"]
        assert [line["requests"] for line in one] == [1]
        day = usage.today()
        for parameters, lines in (
            ({"from": day, "to": day}, 3),
            ({"to": "2020-01-01"}, 0),
            ({"from": "2999-01-01"}, 0),
        ):
            assert len((await registry.http.get(USAGE, params=parameters)).json()["data"]) == lines


@alive
async def test_an_embedding_is_counted_by_its_prompt(place: Place) -> None:
    async with place.running() as registry:
        key = await made_key(registry, tokens_per_minute=6)
        sent = {"json": {"model": BASE, "input": [[5, 6], [7, 8, 9]]}}
        headers = {"Authorization": f"Bearer {key['key']}"}
        first, second = [await registry.http.post("/v1/embeddings", headers=headers, **sent) for _ in range(2)]
        assert (first.status_code, first.headers["x-ratelimit-remaining-tokens"]) == (200, "1")
        assert second.status_code == 429
        [line] = (await registry.http.get(USAGE, params={"key": key["id"]})).json()["data"]
        assert (line["requests"], line["prompt_tokens"], line["completion_tokens"]) == (1, 5, 0)


@alive
async def test_what_is_refused_when_its_schema_is_read_is_no_usage_and_costs_nothing(sqlite_place: Place) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    strict = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    async with sqlite_place.running() as registry:
        key = await made_key(registry, requests_per_minute=1, tokens_per_minute=40, concurrent_requests=1)
        assert [await ask(registry, key["key"], response_format=strict) for _ in range(2)] == [400, 400]
        assert (await registry.http.get(USAGE, params={"key": key["id"]})).json()["data"] == []
        assert await ask(registry, key["key"], max_tokens=37) == 200


@alive
async def test_usage_comes_as_csv_too(place: Place) -> None:
    async with place.running() as registry:
        key = await made_key(registry)
        await ask(registry, key["key"])
        for asked in ({"params": {"format": "csv"}}, {"headers": {"Accept": "text/csv"}}):
            answer = await registry.http.get(USAGE, **asked)
            assert answer.headers["content-type"].startswith("text/csv")
            (line,) = csv.DictReader(io.StringIO(answer.text))
            assert (line["key"], line["model"], line["requests"], line["completion_tokens"]) == (
                key["id"],
                BASE,
                "1",
                "4",
            )


@alive
async def test_a_long_answer_comes_whole_and_in_order(place: Place) -> None:
    async with place.running() as registry:

        def fill(session: Any) -> None:
            session.add_all(
                Usage(day=f"2026-01-{day:02}", tenant="acme", key=f"key_{number}", model="m", revision=1, **ONES)
                for day in range(1, 26)
                for number in range(100)
            )

        registry.admin.database.transact(fill)
        data = (await registry.http.get(USAGE)).json()["data"]
        found = [(line["day"], line["key"]) for line in data]
        assert len(found) == len(set(found)) == 2500
        assert [day for day, _ in found] == sorted(day for day, _ in found)
        lines = (await registry.http.get(USAGE, params={"format": "csv", "group_by": "day,key"})).text.splitlines()
        assert (len(lines), lines[0].split(",")[:2]) == (2501, ["day", "key"])


ONES = dict.fromkeys(COUNTS, 1)


@alive
async def test_a_tenant_sees_its_own_usage_alone(place: Place) -> None:
    async with place.running() as registry:
        await registry.http.post("/admin/v1/tenants", json={"name": "acme"})
        mine = await made_key(registry, tenant="acme", scopes=["infer", "adapters:read"])
        other = await made_key(registry)
        for key in (mine, other):
            await ask(registry, key["key"])
        headers = {"Authorization": f"Bearer {mine['key']}"}
        for parameters in ({}, {"tenant": "acme"}):
            lines = (await registry.http.get(USAGE, headers=headers, params=parameters)).json()["data"]
            assert [line["tenant"] for line in lines] == ["acme"]
        assert (await registry.http.get(USAGE, headers=headers, params={"key": other["id"]})).json()["data"] == []
        for tenant in ("default", "nobody"):
            refused = await registry.http.get(USAGE, headers=headers, params={"tenant": tenant})
            assert refused.status_code == 403


@alive
async def test_a_key_kept_to_some_adapters_sees_only_their_usage(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:
        kept = await made_key(registry, scopes=["adapters:read"], adapters=["pirate"])
        for resolution in (PIRATE, Resolution(ref=AdapterRef("secret", 1, "e"), speaker="secret@1")):
            registry.admin.books.admit(work(resolution, Caller(name="x"))).end(OUTCOME)
        found = await registry.http.get(USAGE, headers={"Authorization": f"Bearer {kept['key']}"})
        assert [line["model"] for line in found.json()["data"]] == ["pirate"]


@alive
async def test_the_usage_of_a_deleted_tenant_stays(place: Place) -> None:
    async with place.running() as registry:
        await registry.http.post("/admin/v1/tenants", json={"name": "acme"})
        key = await made_key(registry, tenant="acme")
        await ask(registry, key["key"])
        await registry.http.delete("/admin/v1/tenants/acme")
        lines = (await registry.http.get(USAGE, params={"tenant": "acme"})).json()["data"]
        assert [line["key"] for line in lines] == [key["id"]]


@alive
async def test_a_tenant_that_is_made_anew_shows_nothing_of_the_former_one(place: Place) -> None:
    async with place.running() as registry:
        keys = []
        for _ in range(3):
            await registry.http.post("/admin/v1/tenants", json={"name": "acme"})
            assert (await registry.http.get(USAGE, params={"tenant": "acme"})).json()["data"] == []
            keys.append((key := await made_key(registry, tenant="acme"))["id"])
            await ask(registry, key["key"])
            await registry.http.get(USAGE)  # writes what has ended
            await registry.http.delete("/admin/v1/tenants/acme")
        lines = (await registry.http.get(USAGE)).json()["data"]
        told = {line["key"]: line["tenant"] for line in lines}
        assert [told[key] for key in keys] == ["acme#1", "acme#2", "acme"]


@pytest.mark.parametrize(
    "parameters", [{"from": "yesterday"}, {"to": "2026-13-01"}, {"group_by": "colour"}, {"format": "x"}]
)
@alive
async def test_a_wrong_question_is_refused_by_name(sqlite_place: Place, parameters: dict[str, str]) -> None:
    async with sqlite_place.running() as registry:
        answer = await registry.http.get(USAGE, params=parameters)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(parameters)))


@alive
async def test_without_a_database_the_question_fails_before_the_answer_begins(sqlite_place: Place) -> None:
    async with sqlite_place.running() as registry:

        def fail(_work: Any) -> Any:
            raise Unavailable("the database does not answer")

        registry.admin.database.read = fail  # type: ignore[method-assign]
        try:
            assert (await registry.http.get(USAGE)).status_code == 503
        finally:
            del registry.admin.database.read


@alive
async def test_limits_are_told_in_every_answer_and_refuse_in_openais_words(place: Place) -> None:
    async with place.running() as registry:
        key = await made_key(registry, requests_per_minute=2, tokens_per_minute=1000)
        headers = {"Authorization": f"Bearer {key['key']}"}
        body = {"model": BASE, "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
        first = await registry.http.post("/v1/completions", json=body, headers=headers)
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        streamed = await registry.http.post("/v1/completions", json={**body, "stream": True}, headers=headers)
        assert streamed.headers["x-ratelimit-remaining-tokens"] == str(1000 - 7 - 7)
        assert streamed.headers["x-aril-adapter"] == BASE
        refused = await registry.http.post("/v1/completions", json=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 0 < int(refused.headers["retry-after"]) <= 61
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        await registry.http.patch(f"/admin/v1/keys/{key['id']}", json={"requests_per_minute": None})
        assert (await registry.http.post("/v1/completions", json=body, headers=headers)).status_code == 200
        assert (await registry.http.get("/v1/models", headers=headers)).status_code == 200
