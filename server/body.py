"""The body of a request, bounded, as a checked record."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from fastapi import Request

from ..core.body import Body, check_media, parse
from ..core.errors import TooLarge
from ..core.log import event, get_logger
from .deps import face_of

log = get_logger(__name__)

B = TypeVar("B", bound=Body)


def reads(schema: type[B]) -> Callable[[Request], Awaitable[B]]:
    """A dependency that reads a body of `schema`; raises InvalidRequest, TooLarge or WrongMedia."""

    async def read(request: Request) -> B:
        check_media(request.headers.get("content-type"))
        raw = await _bytes_of(request)
        request.state.body_size = len(raw)
        body = await face_of(request).aside.read(len(raw), partial(parse, schema, raw))
        if body.unknown and log.isEnabledFor(logging.DEBUG):
            log.debug(event("unknown_fields", schema=schema.__name__, fields=",".join(body.unknown)))
        return body

    return read


def size_of(request: Request) -> int:
    """Bytes of the body that was read: how much work it may be."""
    size: int = request.state.body_size
    return size


async def _bytes_of(request: Request) -> bytes:
    limit = face_of(request).max_body
    if int(request.headers.get("content-length") or 0) > limit:
        raise TooLarge(f"the body is over {limit} bytes, the most this server reads")
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > limit:
            raise TooLarge(f"the body is over {limit} bytes, the most this server reads")
    return bytes(parts)
