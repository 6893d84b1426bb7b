"""JSON bodies of the admin face: bounded, strict, and every finding names its field.

They are read as JSON whatever they say that they are, as `curl -d` calls everything a form: the face answers nobody
without a key in a header, and that no page can send unasked. Doors that may stand open take `says_json` besides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel

from ..core.body import check_media, parse_exact
from ..core.errors import TooLarge

MAX_BYTES = 1 << 20
LARGE = 1 << 15  # bytes that take some milliseconds to read; more are read beside the event loop
B = TypeVar("B", bound=BaseModel)


def reads(schema: type[B]) -> Callable[[Request], Awaitable[B]]:
    """A dependency that reads a body of `schema`; raises InvalidRequest or TooLarge."""

    async def read(request: Request) -> B:
        raw = bytearray()
        async for part in request.stream():
            raw += part
            if len(raw) > MAX_BYTES:
                raise TooLarge(f"the body is over {MAX_BYTES} bytes")
        if len(raw) <= LARGE:
            return parse_exact(schema, bytes(raw))
        return await asyncio.to_thread(parse_exact, schema, bytes(raw))

    return read


async def says_json(request: Request) -> None:
    """A dependency that raises WrongMedia for a body that says it is something else."""
    check_media(request.headers.get("content-type"))
