"""Receives a multipart upload: streamed to disk, bounded, every field known. Never looks into the files."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from ..core.errors import InvalidRequest, TooLarge
from ..lora.config import CONFIG_FILE, WEIGHTS_FILE
from . import archives
from .adapters import Contents

TEXT_FIELDS = ("name", "description", "activate")
FILE_FIELDS = ("files", "file")
MAX_FILES = archives.MAX_MEMBERS
MAX_TEXT = 1 << 16  # bytes of one text field
OVERHEAD = 1 << 18  # text fields, part headers and boundaries beside the files
SWITCHES = {"true": True, "1": True, "false": False, "0": False}
# What /docs shows; the body is read by hand, so that nothing is received before the key has been checked.
OPENAPI = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "files"],
                    "properties": {
                        "name": {"type": "string"},
                        "description": {"type": "string"},
                        "activate": {"type": "boolean", "default": True},
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                    },
                }
            }
        },
    }
}


@dataclass(frozen=True, slots=True)
class Upload:
    """One upload, received whole."""

    name: str
    description: str | None
    activate: bool
    contents: Contents


@asynccontextmanager
async def received(request: Request, max_bytes: int) -> AsyncIterator[Upload]:
    """The upload in a request body of at most `max_bytes`; its temporary files last as long as the context.

    Raises InvalidRequest, and TooLarge as soon as the limit is passed.
    """
    form = await _form(request, max_bytes)
    try:
        yield _upload(form, max_bytes)
    finally:
        await form.close()


async def _form(request: Request, max_bytes: int) -> FormData:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidRequest("send the upload as multipart/form-data with the fields name and files")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes + OVERHEAD:
        raise _too_large(max_bytes)
    stream = _bounded(request.stream(), max_bytes)
    num_fields = len(TEXT_FIELDS) + 1  # one more, so that an unknown field is named rather than counted
    parser = MultiPartParser(
        request.headers, stream, max_files=MAX_FILES, max_fields=num_fields, max_part_size=MAX_TEXT
    )
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"the upload is not sound multipart/form-data: {error.message}") from error


async def _bounded(stream: AsyncIterator[bytes], max_bytes: int) -> AsyncGenerator[bytes, None]:
    received = 0
    async for piece in stream:
        received += len(piece)
        if received > max_bytes + OVERHEAD:
            raise _too_large(max_bytes)
        yield piece


def _upload(form: FormData, max_bytes: int) -> Upload:
    texts: dict[str, str] = {}
    files: dict[str, BinaryIO | Path] = {}
    for field, value in form.multi_items():
        known, kind = (TEXT_FIELDS, texts) if isinstance(value, str) else (FILE_FIELDS, files)
        key = field if isinstance(value, str) else value.filename or ""
        if field not in known:
            raise InvalidRequest(f"no field {field!r} of that kind; possible: {', '.join(known)}", param=field)
        if key in kind:
            raise InvalidRequest(f"{key!r} is there twice", param=field)
        if isinstance(value, UploadFile):
            files[key] = value.file
        else:
            texts[key] = value
    if "name" not in texts:
        raise InvalidRequest("the field 'name' is missing", param="name")
    return Upload(texts["name"], texts.get("description"), _switch(texts), _contents(files, max_bytes))


def _switch(texts: Mapping[str, str]) -> bool:
    text = texts.get("activate", "true").lower()
    if text not in SWITCHES:
        raise InvalidRequest(f"activate is {text[:20]!r}; possible: true, false", param="activate")
    return SWITCHES[text]


def _contents(files: dict[str, BinaryIO | Path], max_bytes: int) -> Contents:
    if not files:
        wanted = f"{CONFIG_FILE} and {WEIGHTS_FILE}, or one archive of them ({', '.join(archives.SUFFIXES)})"
        raise InvalidRequest(f"no files; send {wanted} in the field 'files'", param="files")
    for name, file in files.items():
        if name.lower().endswith(archives.SUFFIXES) and not isinstance(file, Path):
            if len(files) > 1:
                raise InvalidRequest("an archive comes alone", param="files")
            return archives.opened(name, file, max_bytes)
    return nullcontext(files)


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"the upload is larger than the {max_bytes} bytes that this server accepts", param="files")
