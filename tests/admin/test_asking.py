"""How lines are asked: "not now" is waited out, and what ends one line's caller or the engine ends them all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field

import pytest
from aril.admin_api.batches import asking
from aril.admin_api.batches.asking import TRIES_FOR_A_MODEL, Asker
from aril.core.answering import Answer
from aril.core.batch_lines import Line, Reply
from aril.core.callers import LOCAL, Caller
from aril.core.errors import EngineDead, Unauthorized
from builders.registry import alive


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a clock here."""
    monkeypatch.setattr(asking, "SHORTEST_PAUSE", 0.0)


def answer(status: int, **error: str) -> Answer:
    """What a face would say."""
    body = {"error": error} if error else {}
    return Answer(status=status, request_id="r", body=json.dumps(body).encode(), retry_after=None)


@dataclass
class Scripted:
    """Answers each line with the next of its script, the last one for ever. Implements core.answering.Answerer."""

    script: Sequence[Answer]
    paths: Collection[str] = ("/v1/x",)
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0

    async def answer(self, caller: Caller, path: str, body: bytes) -> Answer:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(0)
        self._at_once -= 1
        self.asked.append((caller.name, body))
        return self.script[min(len(self.asked), len(self.script)) - 1]


async def lines(num_lines: int) -> AsyncIterator[Line]:
    for at in range(num_lines):
        yield Line(number=at + 1, custom_id=f"r{at}", url="/v1/x", body={"at": at})


async def asked(scripted: Scripted, num_lines: int = 1, caller: Caller = LOCAL, at_once: int = 4) -> list[Reply]:
    """The replies to some lines, in the order of their coming."""
    kept: list[Reply] = []

    async def keep(reply: Reply) -> None:
        kept.append(reply)

    room = asyncio.Semaphore(2)
    await Asker(scripted, lambda: caller, keep, room=room, at_once=at_once).run(lines(num_lines))
    return kept


@alive
async def test_a_line_is_asked_until_it_is_let_in() -> None:
    scripted = Scripted([answer(429, code="rate_limit_exceeded"), answer(503, code="queue_full"), answer(200)])
    (reply,) = await asked(scripted)
    assert reply.ok
    assert len(scripted.asked) == 3


@alive
async def test_what_is_an_answer_is_not_asked_again() -> None:
    for status in (400, 404, 413, 500, 504):
        (reply,) = await asked(Scripted([answer(status, code="x"), answer(200)]))
        assert not reply.ok
        assert json.loads(reply.text)["response"]["status_code"] == status


@alive
async def test_a_model_that_cannot_be_served_is_given_up_after_some_tries() -> None:
    scripted = Scripted([answer(503, code="unavailable", param="model")])
    (reply,) = await asked(scripted)
    assert json.loads(reply.text)["response"]["status_code"] == 503
    assert len(scripted.asked) == TRIES_FOR_A_MODEL


@alive
async def test_a_dead_engine_ends_all_lines_without_an_answer() -> None:
    with pytest.raises(EngineDead, match="has stopped"):
        await asked(Scripted([answer(503, code="engine_dead", message="the engine has stopped")]), 9)


@alive
async def test_a_caller_who_may_not_ask_any_more_ends_all_lines() -> None:
    def nobody() -> Caller:
        raise Unauthorized("this API key has been revoked")

    scripted = Scripted([answer(200)])

    async def keep(_: Reply) -> None: ...

    with pytest.raises(Unauthorized, match="revoked"):
        await Asker(scripted, nobody, keep, room=asyncio.Semaphore(2), at_once=2).run(lines(9))
    assert scripted.asked == []


@alive
async def test_no_more_lines_are_asked_at_once_than_there_is_room_for() -> None:
    scripted = Scripted([answer(200)])
    replies = await asked(scripted, 20)
    assert sorted(reply.number for reply in replies) == list(range(1, 21))
    assert scripted.most_at_once == 2


@alive
async def test_an_answer_that_is_no_json_is_kept_as_text() -> None:
    (reply,) = await asked(Scripted([Answer(status=500, request_id="", body=b"oops")]))
    assert json.loads(reply.text)["response"]["body"] == "oops"


@alive
async def test_no_line_of_answers_holds_what_readers_take_for_the_end_of_one() -> None:
    body = json.dumps({"text": "a\u2028b\u2029c\x85d\n"}, ensure_ascii=False).encode()
    (reply,) = await asked(Scripted([Answer(status=200, request_id="r", body=body)]))
    (line,) = reply.text.decode().splitlines()
    assert json.loads(line)["response"]["body"]["text"] == "a\u2028b\u2029c\x85d\n"
