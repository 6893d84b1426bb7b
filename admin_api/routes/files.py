"""/v1/files, as OpenAI has it, for batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.datastructures import FormData, UploadFile

from ...core.errors import InvalidRequest, TooLarge
from ..batches import files
from ..batches.ids import cursor
from ..batches.views import MONTH, Deletion, FileView, Listed
from ..db import Database
from ..forms import form_of
from ..guard import CallerDep, Door
from ..tables import NAME_LENGTH, File, now
from ..turns import Turns

HOUR = 3600
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FIELDS = ("purpose", ANCHOR, SECONDS)
WANTED = "send a form (multipart/form-data) with the fields file and purpose"
# What /docs shows; the body is read by hand, so that nothing is received before the key has been checked.
FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": [files.INPUT]},
                        ANCHOR: {"type": "string", "enum": ["created_at"]},
                        SECONDS: {"type": "integer", "minimum": HOUR, "maximum": MONTH},
                    },
                }
            }
        },
    }
}
CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/jsonl": {"schema": {"type": "string", "format": "binary"}}}}
}


class FileRoutes:
    """The routes, as `router`."""

    def __init__(self, door: Door, database: Database, max_bytes: int) -> None:
        self._database = database
        self._max_bytes = max_bytes
        self._turns = Turns()
        self.router = APIRouter(tags=["files"], dependencies=door)
        add = self.router.add_api_route
        add("/v1/files", self.create, methods=["POST"], openapi_extra=FORM)
        add("/v1/files", self.list, methods=["GET"])
        add("/v1/files/{id}", self.get, methods=["GET"])
        add("/v1/files/{id}", self.delete, methods=["DELETE"])
        add(
            "/v1/files/{id}/content", self.content, methods=["GET"], response_class=StreamingResponse, responses=CONTENT
        )

    async def create(self, request: Request, caller: CallerDep) -> FileView:
        """Upload the requests of a batch. The file is durable when it is acknowledged."""
        bounds = {"max_files": 1, "max_fields": len(FIELDS) + 1}
        received = form_of(request, self._max_bytes, **bounds, wanted=WANTED, param="file")
        async with self._turns.of(caller.tenant), received as form:
            sent, expires = _sent(form)
            size = sent.size or 0
            if size > self._max_bytes:
                raise TooLarge(f"the file has {size} bytes, and {self._max_bytes} is the most", param="file")
            name = (sent.filename or "")[:NAME_LENGTH].replace("\0", "")
            begin = partial(files.begin, tenant_id=caller.tenant_id, name=name, purpose=files.INPUT)
            made = await self._database.run(partial(begin, size=size, expires=expires))
            await self._take(sent, made.id)
        return FileView.of(await self._database.run(partial(files.complete, id=made.id)))

    async def list(
        self,
        caller: CallerDep,
        purpose: Annotated[str | None, Query(max_length=64)] = None,
        after: Annotated[str | None, Query(max_length=64)] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
    ) -> Listed[FileView]:
        """The files of the caller's tenant, of answers too; the newest first unless `order` is asc."""
        page = files.Asked(purpose=purpose, after=cursor(after, files.PREFIX), limit=limit, descending=order == "desc")
        found = await self._database.run(partial(files.files, tenant_id=caller.tenant_id, asked=page))
        return Listed[FileView].of([FileView.of(row) for row in found], limit)

    async def get(self, id: str, caller: CallerDep) -> FileView:
        """One file."""
        return FileView.of(await self._file(caller.tenant_id, id))

    async def delete(self, id: str, caller: CallerDep) -> Deletion:
        """Delete a file with its bytes; one that a batch reads is refused."""
        await self._database.run(partial(files.remove, tenant_id=caller.tenant_id, id=id))
        return Deletion(id=id)

    async def content(self, id: str, caller: CallerDep) -> StreamingResponse:
        """The bytes of a file."""
        found = await self._file(caller.tenant_id, id)
        headers = {
            "Content-Length": str(found.size),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(found.name, safe='')}",
        }
        return StreamingResponse(self._bytes(found.id), headers=headers, media_type="application/jsonl")

    async def _file(self, tenant_id: int, id: str) -> File:
        return await self._database.run(partial(files.file, tenant_id=tenant_id, id=id))

    async def _take(self, sent: UploadFile, id: str) -> None:
        """Write what lies in a temporary file by now to the database, piece by piece."""
        number = 0
        while data := await sent.read(files.PIECE):
            await self._database.run(partial(files.append, id=id, number=number, data=data))
            number += 1

    async def _bytes(self, id: str) -> AsyncGenerator[bytes, None]:
        at = -1
        while found := await self._database.run(partial(files.pieces, id=id, after=at)):
            at = found[-1][0]
            yield b"".join(data for _, data in found)


def _sent(form: FormData) -> tuple[UploadFile, int | None]:
    """The file, and when it expires; raises InvalidRequest naming the field at fault."""
    texts: dict[str, str] = {}
    sent: UploadFile | None = None
    for field, value in form.multi_items():
        if field in texts or (field == "file" and sent is not None):
            raise InvalidRequest(f"{field}: is there twice", param=field)
        if field == "file" and isinstance(value, UploadFile):
            sent = value
        elif field in FIELDS and isinstance(value, str):
            texts[field] = value
        else:
            raise InvalidRequest(
                f"no field {field[:64]!r} of that kind; possible: file, {', '.join(FIELDS)}", param=field
            )
    if sent is None:
        raise InvalidRequest("file: this field is required", param="file", code="missing_required_parameter")
    _check_purpose(texts.get("purpose"))
    return sent, _expires(texts.get(ANCHOR), texts.get(SECONDS))


def _check_purpose(purpose: str | None) -> None:
    if purpose is None:
        raise InvalidRequest("purpose: this field is required", param="purpose", code="missing_required_parameter")
    if purpose != files.INPUT:
        message = f"purpose: {purpose[:64]!r} is nothing that files are kept for here; possible: {files.INPUT}"
        raise InvalidRequest(message, param="purpose")


def _expires(anchor: str | None, seconds: str | None) -> int | None:
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequest(f"{ANCHOR}: possible: created_at", param=ANCHOR)
    if seconds is None or not seconds.isascii() or not seconds.isdigit() or not HOUR <= int(seconds[:9]) <= MONTH:
        raise InvalidRequest(f"{SECONDS}: takes {HOUR} to {MONTH}", param=SECONDS)
    return now() + int(seconds)
