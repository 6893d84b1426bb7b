"""OpenAI's own client over /v1/files and /v1/batches of a running server."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import openai
import pytest
from aril.commands._process import Server
from builders.batches import COMPLETIONS, request, requests, written
from openai import OpenAI
from openai.types import Batch

OVER = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    """As its users make it."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60) as found:
        yield found


def made(client: OpenAI, data: bytes) -> Batch:
    """A new batch."""
    file = client.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h")


def ended(client: OpenAI, batch: Batch) -> Batch:
    """The batch at its end."""
    while batch.status not in OVER:
        batch = client.batches.retrieve(batch.id)
    return batch


def test_a_file_is_created_looked_at_listed_read_and_deleted(client: OpenAI) -> None:
    data = requests(3)
    expiry = {"anchor": "created_at", "seconds": 7200}
    file = client.files.create(file=("in.jsonl", data), purpose="batch", expires_after=expiry)  # type: ignore[arg-type]
    assert (file.bytes, file.filename, file.purpose, file.status) == (len(data), "in.jsonl", "batch", "processed")
    assert file.expires_at == file.created_at + 7200
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == data
    assert file.id in [each.id for each in client.files.list(purpose="batch")]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_a_batch_is_made_followed_and_read(client: OpenAI) -> None:
    batch = ended(client, made(client, requests(3) + written([request("wrong", max_tokens=-1)])))
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (4, 3, 1)
    assert batch.usage is not None
    assert batch.usage.output_tokens == 12
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    lines = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [line["custom_id"] for line in lines] == ["r0", "r1", "r2"]
    assert json.loads(client.files.content(batch.error_file_id).text)["response"]["status_code"] == 400
    assert batch.id in [each.id for each in client.batches.list(limit=1)]


def test_a_faulty_file_fails_with_the_lines_at_fault(client: OpenAI) -> None:
    batch = ended(client, made(client, requests(1) + b"{\n"))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(error.line, error.code) for error in batch.errors.data or []] == [(2, "invalid_json_line")]


def test_a_batch_is_cancelled(client: OpenAI) -> None:
    batch = made(client, requests(200, max_tokens=100))
    assert client.batches.cancel(batch.id).status == "cancelling"
    assert ended(client, batch).status == "cancelled"
