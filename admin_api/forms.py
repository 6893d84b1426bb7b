"""Forms (multipart/form-data) out of a request body: streamed to disk, and bounded while they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser

from ..core.errors import InvalidRequest, TooLarge

MAX_TEXT = 1 << 16  # bytes of one text field
OVERHEAD = 1 << 18  # text fields, part headers and boundaries beside the files


@asynccontextmanager
async def form_of(
    request: Request, max_bytes: int, *, max_files: int, max_fields: int, wanted: str, param: str
) -> AsyncIterator[FormData]:
    """The form in a body whose files, in the field `param`, have `max_bytes` at most; they last as long as the context.

    Raises InvalidRequest, with what is `wanted` where it is no form, and TooLarge as soon as the limit is passed.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidRequest(wanted)
    too_large = TooLarge(f"the upload is larger than the {max_bytes} bytes that this server accepts", param=param)
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes + OVERHEAD:
        raise too_large
    parser = MultiPartParser(
        request.headers,
        _bounded(request.stream(), max_bytes + OVERHEAD, too_large),
        max_files=max_files,
        max_fields=max_fields,
        max_part_size=MAX_TEXT,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"the upload is not sound multipart/form-data: {error.message}") from error
    try:
        yield form
    finally:
        await form.close()


async def _bounded(stream: AsyncIterator[bytes], limit: int, too_large: TooLarge) -> AsyncGenerator[bytes, None]:
    received = 0
    async for piece in stream:
        received += len(piece)
        if received > limit:
            raise too_large
        yield piece
