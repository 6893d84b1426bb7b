"""Streams of /v1/responses: the whole sequence of events, for words, thoughts and calls; and who hangs up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest
from aril.engine.request import Chunk
from aril.server.responses.output import Output
from aril.server.speech.base import CallDelta, Delta
from aril.server.turn import News
from builders.serving import Served
from openai import OpenAI

ASK = "what is an aril?"
GREEDY: Any = {
    "model": "tiny", "input": ASK, "temperature": 0, "max_output_tokens": 12, "extra_body": {"ignore_eos": True}
}  # fmt: skip
FRAME = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.incomplete",
]


def test_a_stream_tells_the_whole_sequence(client: OpenAI) -> None:
    events = list(client.responses.create(stream=True, **GREEDY))
    assert [event.type for event in events if event.type != "response.output_text.delta"] == FRAME
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("model", ["tiny", "red"])
def test_a_stream_says_the_same_as_the_whole_answer(client: OpenAI, model: str) -> None:
    whole = client.responses.create(**{**GREEDY, "model": model})
    events = list(client.responses.create(stream=True, **{**GREEDY, "model": model}))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.incomplete"
    assert said == last.response.output_text == whole.output_text
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens


def test_openais_helper_puts_a_stream_together(client: OpenAI) -> None:
    choice: Any = {"structured_outputs": {"choice": ["yes, it is one", "no, it is none"]}}
    with client.responses.stream(model="tiny", input=ASK, extra_body=choice) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text in choice["structured_outputs"]["choice"]
    assert client.responses.retrieve(final.id).output_text == final.output_text


def test_streamed_logprobs_are_those_of_the_whole_answer(client: OpenAI) -> None:
    asked: Any = {**GREEDY, "include": ["message.output_text.logprobs"]}
    events = list(client.responses.create(stream=True, **asked))
    streamed = [s.token for event in events if event.type == "response.output_text.delta" for s in event.logprobs]
    [done] = [event for event in events if event.type == "response.output_text.done"]
    whole = client.responses.create(**asked).output[0].content[0].logprobs  # type: ignore[union-attr]
    assert streamed == [score.token for score in done.logprobs] == [score.token for score in whole or ()]


def test_a_wrong_request_is_no_stream(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="max_output_tokens"):
        client.responses.create(stream=True, **{**GREEDY, "max_output_tokens": 1000})


def test_events_are_named_on_the_wire_and_nothing_follows_the_last(http: httpx.Client) -> None:
    body = {"model": "tiny", "input": ASK, "max_output_tokens": 2, "stream": True}
    blocks = http.post("/v1/responses", json=body).text.strip().split("\n\n")
    for block in blocks:
        name, data = block.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    assert "[DONE]" not in blocks[-1]


def test_who_hangs_up_is_aborted_and_nothing_is_kept(served: Served, http: httpx.Client) -> None:
    body = {"model": "tiny", "input": ASK, "stream": True, "ignore_eos": True}
    with http.stream("POST", "/v1/responses", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        id = json.loads(next(lines).removeprefix("data: "))["response"]["id"]
    with httpx.Client(base_url=served.url, timeout=60) as other:
        while served.engine.status().running:
            other.get("/health")
        assert other.get(f"/v1/responses/{id}").status_code == 404


def told(*deltas: Delta, logprobs: Sequence[Any] = ()) -> tuple[Output, list[tuple[str, dict[str, Any]]]]:
    """The output that deltas make, and all events of it."""
    output = Output()
    events = [e for delta in deltas for e in output.take(News(0, False, delta, None, Chunk("", 0, [])), list(logprobs))]
    return output, [*events, *output.end("completed")]


def names(events: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Their types, without what all begin with."""
    return [name.removeprefix("response.") for name, _ in events]


CALLS = (
    Delta(reasoning="hm"),
    Delta(reasoning="m", content="I look"),
    Delta(calls=(CallDelta(0, "call_1", "f", '{"a"'),)),
    Delta(calls=(CallDelta(0, arguments=": 1}"), CallDelta(1, "call_2", "g", "{}"))),
)


def test_thoughts_words_and_calls_are_items_one_after_another() -> None:
    output, events = told(*CALLS)
    assert [(item["type"], item["status"]) for item in output.items] == [
        ("reasoning", "completed"),
        ("message", "completed"),
        ("function_call", "completed"),
        ("function_call", "completed"),
    ]
    assert output.items[0]["content"] == [{"type": "reasoning_text", "text": "hmm"}]
    assert [(i["call_id"], i["name"], i["arguments"]) for i in output.items[2:]] == [
        ("call_1", "f", '{"a": 1}'),
        ("call_2", "g", "{}"),
    ]
    assert names(events) == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]


def test_every_event_says_which_item_it_is_of() -> None:
    output, events = told(*CALLS)
    for _, fields in events:
        item = output.items[fields["output_index"]]
        assert fields.get("item_id", item["id"]) == item["id"]
    begun = [fields["item"] for name, fields in events if name == "response.output_item.added"]
    assert [item["status"] for item in begun] == ["in_progress"] * 4
    assert [item.get("content", []) for item in begun] == [[]] * 4


def test_an_answer_without_a_word_is_an_empty_message() -> None:
    output, events = told(Delta())
    assert output.items[0]["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
    assert names(events)[-1] == "output_item.done"


def test_scores_of_tokens_whose_text_is_held_back_come_with_it() -> None:
    _, events = told(Delta(), Delta("a"), Delta(), logprobs=["score"])
    shown = [fields["logprobs"] for name, fields in events if name == "response.output_text.delta"]
    assert shown == [["score", "score"], ["score"]]
