"""Responses that are made while nobody waits: looked at, heard from the middle, cancelled, cut by the server's end."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import openai
import pytest
from aril.core.callers import Caller
from aril.core.errors import InvalidRequest, Overloaded, RateLimited, Unavailable
from aril.server.responses import shelf
from aril.server.responses.event_log import Log
from aril.server.responses.shelf import Shelf
from builders.registry import alive, until
from builders.serving import Served
from openai import OpenAI
from openai.types.responses import Response

ASK = "what is an aril?"
OURS, THEIRS = Caller(name="a", tenant="ours", tenant_id=1), Caller(name="b", tenant="theirs", tenant_id=2)
LONG: Any = {"model": "tiny", "input": ASK, "background": True, "extra_body": {"ignore_eos": True}}
SHORT: Any = {**LONG, "temperature": 0, "max_output_tokens": 12}


def ended(client: OpenAI, begun: Response) -> Response:
    """The response once it has ended."""
    while (found := client.responses.retrieve(begun.id)).status == "in_progress":
        pass
    return found


def test_it_begins_at_once_and_ends_as_if_it_had_been_waited_for(client: OpenAI) -> None:
    begun = client.responses.create(**SHORT)
    assert (begun.status, begun.background, begun.output, begun.usage) == ("in_progress", True, [], None)
    found = ended(client, begun)
    whole = client.responses.create(**{**SHORT, "background": False})
    assert (found.status, found.output_text) == (whole.status, whole.output_text)
    assert found.usage is not None
    assert found.usage.output_tokens == 12


def test_a_cancelled_one_stays_cancelled_and_is_aborted(client: OpenAI, served: Served) -> None:
    with client.responses.create(stream=True, **LONG) as stream:
        begun = next(iter(stream)).response
        assert client.responses.cancel(begun.id).status == "cancelled"
        assert [event.type for event in stream][-1] == "response.cancelled"
    assert client.responses.cancel(begun.id).status == "cancelled"
    while served.engine.status().running:
        pass
    assert client.responses.retrieve(begun.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError) as told:
        client.responses.create(model="tiny", input="go on", previous_response_id=begun.id)
    assert told.value.code == "previous_response_not_completed"


def test_one_that_was_waited_for_cannot_be_cancelled(client: OpenAI) -> None:
    done = client.responses.create(**{**SHORT, "background": False})
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(done.id)


def test_a_deleted_one_is_gone_and_aborted(client: OpenAI, served: Served) -> None:
    begun = client.responses.create(**LONG)
    client.responses.delete(begun.id)
    while served.engine.status().running:
        pass
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(begun.id)


def test_who_hangs_up_on_its_stream_does_not_stop_it(client: OpenAI) -> None:
    with client.responses.create(stream=True, **SHORT) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    assert ended(client, first.response).status == "incomplete"


def test_its_stream_is_heard_from_any_event_on(client: OpenAI) -> None:
    with client.responses.create(stream=True, **LONG) as stream:
        events = [event for event, _ in zip(stream, range(6), strict=False)]
    assert events[0].type == "response.created"
    again = client.responses.retrieve(events[0].response.id, stream=True, starting_after=3)
    heard = list(again)
    assert heard[:2] == events[4:]
    assert [event.sequence_number for event in heard] == list(range(4, 4 + len(heard)))
    last = heard[-1]
    assert last.type == "response.incomplete"
    with pytest.raises(openai.BadRequestError, match="stream"):
        client.responses.retrieve(last.response.id, stream=True)


class Remembering:
    """A store that keeps nothing but what it is told at the end, and wants what it is told to want."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        self.held = 0

    async def hold(self, ids: list[str]) -> set[str]:
        self.held += 1
        return self.wanted


class Failing(Remembering):
    """A store that fails as no store of ours does."""

    async def hold(self, ids: list[str]) -> set[str]:
        self.held += 1
        raise RuntimeError("no such table")


@alive
async def test_what_another_server_has_ended_is_not_made_any_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "BEAT", 0.0)
    store = Remembering()
    store.wanted = {"a", "b"}
    here = Shelf(store)  # type: ignore[arg-type]  # it is asked for nothing else
    for id in ("a", "b"):
        here.start(id, asyncio.sleep(3600), Log())
    await until(lambda: store.held > 2)
    store.wanted = {"b"}
    await until(lambda: here.log("a") is None)
    assert here.log("b") is not None
    await here.close()
    assert here.log("b") is None


@alive
async def test_a_store_that_fails_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "BEAT", 0.0)
    store = Failing()
    here = Shelf(store)  # type: ignore[arg-type]  # it is asked for nothing else
    here.start("a", asyncio.sleep(3600), Log())
    await until(lambda: store.held > 2)
    assert len(here.running()) == 1
    await here.close()


async def never_kept() -> None:
    raise Unavailable("the database does not answer")


@alive
async def test_an_end_that_cannot_be_kept_is_one_event_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    here = Shelf()
    here.start("a", never_kept(), Log())
    await until(lambda: not here.running())
    gc.collect()  # a task whose failure nobody has seen says so as it goes
    told = [record.getMessage() for record in caplog.records]
    assert told == ["response_not_kept response=a error='the database does not answer'"]
    await here.close()


@alive
async def test_a_server_makes_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MOST", 1)
    here = Shelf()
    with here.place("a", OURS):
        here.start("a", asyncio.sleep(3600), Log())
    with pytest.raises(Overloaded, match="most"), here.place("b", THEIRS):
        pass
    await here.close()
    here.check_room(THEIRS)


@alive
async def test_no_tenant_takes_the_places_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MOST_OF_ONE", 2)
    here = Shelf()
    with here.place("a", OURS), here.place("b", OURS):
        with pytest.raises(RateLimited, match="2 responses of the tenant 'ours'") as told:
            here.check_room(OURS)
        here.check_room(THEIRS)
        here.check_room(Caller(name="anyone", tenant_id=OURS.tenant_id, alone=True))
    assert (told.value.param, told.value.code, told.value.retry_after) == ("background", "too_many_responses", 5.0)
    here.check_room(OURS)  # none was begun


@alive
async def test_a_log_is_read_by_many_each_at_its_own_pace() -> None:
    log = Log()
    early = asyncio.create_task(_all(log, 0))
    for event in (b"a", b"b", b"c"):
        log.add(event)
        await asyncio.sleep(0)
    late = asyncio.create_task(_all(log, 1))
    log.add(b"d")
    log.end()
    assert await early == [b"a", b"b", b"c", b"d"]
    assert await late == [b"b", b"c", b"d"]


@alive
async def test_of_a_long_response_the_newest_events_are_kept() -> None:
    log = Log(most_bytes=10)
    slow = log.read()
    for event in (b"0000", b"1111", b"2222"):
        log.add(event)
    with pytest.raises(InvalidRequest, match=r"before number 1 are not kept .* starting_after=0") as told:
        await anext(slow)
    assert (told.value.param, told.value.code) == ("starting_after", "events_not_kept")
    late = log.read(1)
    assert [await anext(late), await anext(late)] == [b"1111", b"2222"]
    log.add(b"3" * 20)
    log.end()
    assert [event async for event in late] == [b"3" * 20]  # whoever keeps up hears all


async def _all(log: Log, first: int) -> list[bytes]:
    return [event async for event in log.read(first)]
