"""OpenAI's Python client beside chat: embeddings, responses, files and batches."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
import pytest
from openai import OpenAI

from .forms import GREEDY, Seed


@pytest.mark.parametrize("encoding", ["float", "base64", openai.omit], ids=["float", "base64", "unsaid"])
def test_texts_are_embedded(client: OpenAI, encoding: Any) -> None:
    found = client.embeddings.create(model="tiny", input=["a seed", "two seeds"], encoding_format=encoding)
    assert [item.index for item in found.data] == [0, 1]
    assert len(found.data[0].embedding) == 64 or encoding == "base64"
    assert found.usage.total_tokens > 0


def test_a_response_is_made_kept_and_deleted(client: OpenAI) -> None:
    made = client.responses.create(model="tiny", input="Name a seed.", max_output_tokens=16, temperature=0)
    assert made.status in ("completed", "incomplete")
    assert client.responses.retrieve(made.id).output_text == made.output_text
    assert list(client.responses.input_items.list(made.id))
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_response_goes_on_from_another(client: OpenAI) -> None:
    first = client.responses.create(model="tiny", input="Name a seed.", max_output_tokens=16)
    second = client.responses.create(
        model="tiny", input="Another.", previous_response_id=first.id, max_output_tokens=16
    )
    assert second.previous_response_id == first.id
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


def test_a_response_is_streamed(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": "Name a seed.", "max_output_tokens": 16, "temperature": 0}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == whole.output_text


def test_a_response_is_parsed(client: OpenAI) -> None:
    made = client.responses.parse(model="tiny", input="Name a seed.", text_format=Seed, max_output_tokens=200)
    assert isinstance(made.output_parsed, Seed)


def test_a_response_in_the_background_can_be_waited_for(client: OpenAI) -> None:
    made = client.responses.create(model="tiny", input="Name a seed.", max_output_tokens=8, background=True)
    end = time.monotonic() + 30
    while made.status in ("queued", "in_progress") and time.monotonic() < end:
        made = client.responses.retrieve(made.id)
    assert made.status in ("completed", "incomplete")


def test_a_batch_is_answered(client: OpenAI) -> None:
    lines = [
        {"custom_id": f"no {at}", "method": "POST", "url": "/v1/completions", "body": {**GREEDY, "prompt": f"{at}"}}
        for at in range(5)
    ]
    file = client.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    assert client.files.retrieve(file.id).filename == "in.jsonl"
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    end = time.monotonic() + 60
    while batch.status not in ("completed", "failed", "expired", "cancelled") and time.monotonic() < end:
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id or "").text.splitlines()]
    assert sorted(answer["custom_id"] for answer in answers) == [f"no {at}" for at in range(5)]
    assert {answer["response"]["status_code"] for answer in answers} == {200}
    assert batch.id in [other.id for other in client.batches.list()]
    assert client.files.delete(file.id).deleted


def test_an_unknown_file_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve("file-none")
