"""What is long in a body of the admin face, or in a file of requests, is read beside the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import httpx
from aril.admin_api import bodies
from aril.admin_api.batches import reading
from aril.core import weight
from aril.core.batch_lines import Checked, Line
from aril.core.body import ExactBody, parse_exact
from builders.where import Where, watched
from fastapi import Depends, FastAPI

COMPLETIONS = "/v1/completions"


class Named(ExactBody):
    """A body of one text."""

    name: str


def line(prompt: object) -> bytes:
    """One request of a file."""
    said = {"custom_id": "a", "method": "POST", "url": COMPLETIONS, "body": {"model": "tiny", "prompt": prompt}}
    return json.dumps(said).encode()


def checked(raw: bytes) -> tuple[Checked, Where]:
    """What a look at a file of that one line has found, and where it was taken."""

    async def lines() -> AsyncGenerator[reading.Raw, None]:
        yield 1, raw

    async def look() -> tuple[Any, Where]:
        return await watched(reading.check(lines(), COMPLETIONS))

    return asyncio.run(look())


def test_a_large_body_is_read_beside_the_loop() -> None:
    app = FastAPI()

    @app.post("/")
    async def take(body: Annotated[Named, Depends(bodies.reads(Named))]) -> int:
        return len(body.name)

    async def ask(size: int) -> tuple[Any, Where]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://aril") as client:
            return await watched(client.post("/", json={"name": "a" * size}))

    answer, where = asyncio.run(ask(bodies.LARGE))
    assert (answer.json(), where.ran_beside(parse_exact)) == (bodies.LARGE, True)
    answer, where = asyncio.run(ask(9))
    assert (answer.json(), where.ran_beside(parse_exact)) == (9, False)


def test_a_long_line_is_looked_at_beside_the_loop() -> None:
    found, where = checked(line("a" * reading.LARGE))
    assert (found.errors, found.total) == ([], 1)
    assert where.ran_beside(Line.of)


def test_a_line_of_too_many_values_is_told_by_its_number() -> None:
    found, _ = checked(line([[]] * (weight.MOST_PARTS + 1)))
    [error] = found.errors
    assert (error.code, error.message[:7]) == ("too_many_values", "line 1:")
