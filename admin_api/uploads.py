"""Receives a multipart upload: streamed to disk, bounded, every field known. Never looks into the files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fastapi import Request
from starlette.datastructures import FormData, UploadFile

from ..core.body import parse
from ..core.errors import InvalidRequest
from ..lora.config import CONFIG_FILE, WEIGHTS_FILE
from . import archives
from .adapters import Contents
from .forms import form_of
from .gate import golden_of
from .wishes import Wishes

TEXT_FIELDS = tuple(Wishes.model_fields)
FILE_FIELDS = ("files", "file")
MAX_FILES = archives.MAX_MEMBERS
PIECE = 1 << 20
WANTED = (
    "send a form (multipart/form-data) with the fields name and files, "
    "or JSON with name and source, as Content-Type: application/json"
)
SWITCHES = {"true": True, "1": True, "false": False, "0": False, "null": None}
# What /openapi.json shows; the body is read by hand, so that nothing is received before the key has been checked.
OPENAPI = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "files"],
                    "properties": {
                        **Wishes.model_json_schema()["properties"],
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

    wishes: Wishes
    contents: Contents
    files: Mapping[str, BinaryIO | Path]

    async def identity(self) -> str:
        """What tells it from another upload, however it is sent: its fields, and the digests of its files."""
        return await asyncio.to_thread(self._identity)

    def _identity(self) -> str:
        digests = {name: _digest(file) for name, file in sorted(self.files.items())}
        return json.dumps([self.wishes.model_dump(mode="json"), digests])


@asynccontextmanager
async def received(request: Request, max_bytes: int) -> AsyncIterator[Upload]:
    """The upload in a request body of at most `max_bytes`; its temporary files last as long as the context.

    Raises InvalidRequest, and TooLarge as soon as the limit is passed.
    """
    num_fields = len(TEXT_FIELDS) + 1  # one more, so that an unknown field is named rather than counted
    bounds = {"max_files": MAX_FILES, "max_fields": num_fields}
    async with form_of(request, max_bytes, **bounds, wanted=WANTED, param="files") as form:
        yield _upload(form, max_bytes)


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
    return Upload(_wishes(texts), _contents(files, max_bytes), files)


def _wishes(texts: Mapping[str, str]) -> Wishes:
    """The fields of a form, which are all text; `tags` have commas between them, `golden` is JSON."""
    values: dict[str, Any] = dict(texts)
    for field in ("activate", "force"):
        if field in texts:
            values[field] = _switch(field, texts[field])
    if "tags" in texts:
        values["tags"] = [tag.strip() for tag in texts["tags"].split(",") if tag.strip()]
    if "golden" in texts:
        values["golden"] = golden_of(texts["golden"])
    if re.fullmatch(r"[0-9]{1,9}", texts.get("wait", "")):
        values["wait"] = int(texts["wait"])
    return parse(Wishes, json.dumps(values).encode())


def _switch(field: str, text: str) -> bool | None:
    if text.lower() not in SWITCHES:
        raise InvalidRequest(f"{field} is {text[:20]!r}; possible: true, false", param=field)
    return SWITCHES[text.lower()]


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


def _digest(file: BinaryIO | Path) -> str:
    assert not isinstance(file, Path)
    digest = hashlib.sha256()
    while piece := file.read(PIECE):
        digest.update(piece)
    file.seek(0)
    return digest.hexdigest()
