"""Files of requests, and batches of them on a registry at work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import httpx

COMPLETIONS = "/v1/completions"
LONG = 20_000  # tokens: minutes


class Asks(Protocol):
    """A registry, or a tenant of one."""

    async def send(self, method: str, path: str, **fields: Any) -> httpx.Response: ...


def request(custom_id: str, **body: Any) -> dict[str, Any]:
    """A line that asks for a few tokens; `body` changes that."""
    asked = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "ignore_eos": True, **body}
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": asked}


def written(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """As a file."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def requests(num_lines: int, **body: Any) -> bytes:
    """A file of such lines, r0, r1 and so on, each with a prompt of its own."""
    return written(request(f"r{at}", **{"prompt": [5, 6, 7 + at], **body}) for at in range(num_lines))


async def uploaded(by: Asks, data: bytes, **form: str) -> str:
    """The id of a new file."""
    answer = await by.send("POST", "/v1/files", data={"purpose": "batch", **form}, files={"file": ("in.jsonl", data)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def begun(by: Asks, data: bytes, **fields: Any) -> str:
    """The id of a new batch."""
    asked = {"input_file_id": await uploaded(by, data), "endpoint": COMPLETIONS, "completion_window": "24h", **fields}
    answer = await by.send("POST", "/v1/batches", json=asked)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def looked_at(by: Asks, id: str) -> dict[str, Any]:
    """A batch as it stands."""
    return dict((await by.send("GET", f"/v1/batches/{id}")).json())


async def ended(by: Asks, id: str) -> dict[str, Any]:
    """A batch at its end."""
    async with asyncio.timeout(60):
        while (found := await looked_at(by, id))["status"] in ("validating", "in_progress", "finalizing", "cancelling"):
            await asyncio.sleep(0.01)
    return found


async def answered(by: Asks, id: str, num_lines: int) -> None:
    """Wait until so many lines have their answers."""
    async with asyncio.timeout(60):
        while (await looked_at(by, id))["request_counts"]["completed"] < num_lines:
            await asyncio.sleep(0.01)


async def content(by: Asks, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of a file."""
    assert file_id is not None
    answer = await by.send("GET", f"/v1/files/{file_id}/content")
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]
