"""/admin/v1/uploads: adapters that come in parts, and what becomes of those that are fetched from a source."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from ...core.body import ExactBody, describes
from ...core.errors import InvalidRequest
from ...lora.store import KEPT
from .. import archives
from ..arrivals import Arrivals
from ..arrivals.rows import Plan
from ..bodies import reads
from ..guard import PREFIX, CallerDep, Door
from ..replies import Answer, OnceDep
from ..tables import Arrival, Stage
from ..wishes import Sha256, Wishes

PART_BYTES = 8 << 20  # what clients are advised to send at once
# What /openapi.json shows of a part; its body is read by hand, while it comes.
PART = {
    "parameters": [
        {"name": "Upload-Offset", "in": "header", "schema": {"type": "integer"}, "description": "or Content-Range"},
        {
            "name": "Content-Digest",
            "in": "header",
            "required": True,
            "schema": {"type": "string"},
            "description": "sha-256=:BASE64: of the part (RFC 9530)",
        },
    ],
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    },
}


class FileSpec(ExactBody):
    """A file that will come; `sha256` in hex."""

    size: Annotated[int, Field(ge=0, le=1 << 53)]
    sha256: Sha256


class NewUpload(Wishes):
    """POST /uploads. The files are those of a PEFT folder, or one archive of them."""

    files: Annotated[dict[str, FileSpec], Field(min_length=1, max_length=len(KEPT))]


class FileView(BaseModel):
    """How far a file is: the next part begins at `received`."""

    size: int
    sha256: str
    received: int


class ArrivalView(BaseModel):
    """An upload. `state` is receiving, fetching, complete (then `revision_url` tells of the gate) or failed (then
    `problem` says why). It is forgotten at `expires`, in seconds since 1970."""

    object: Literal["upload"] = "upload"
    id: str
    name: str
    state: Stage
    status_url: str
    files: dict[str, FileView]
    wishes: dict[str, Any]  # all that was said with it
    part_bytes: int = PART_BYTES
    source: str | None
    problem: dict[str, Any] | None
    revision: int | None
    digest: str | None
    revision_url: str | None
    created: int
    expires: int

    @classmethod
    def of(cls, row: Arrival) -> ArrivalView:
        """The view of a row."""
        told = ("id", "name", "source", "problem", "revision", "digest", "created", "expires")
        revision = f"{PREFIX}/adapters/{quote(row.name)}/revisions/{row.revision}" if row.revision else None
        return cls(
            **{name: getattr(row, name) for name in told},
            state=row.stage,
            status_url=f"{PREFIX}/uploads/{row.id}",
            files={
                file: FileView(**{key: state[key] for key in FileView.model_fields})
                for file, state in row.files.items()
            },
            wishes=row.fields,
            revision_url=revision,
        )


class ArrivalList(BaseModel):
    """The uploads of a tenant, the newest first."""

    object: Literal["list"] = "list"
    data: list[ArrivalView]


class UploadRoutes:
    """The routes, as `router`."""

    def __init__(self, door: Door, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self.router = APIRouter(prefix=PREFIX, tags=["uploads"], dependencies=door)
        add = self.router.add_api_route
        post = self.router.post(
            "/uploads", status_code=201, response_model=ArrivalView, openapi_extra=describes(NewUpload)
        )
        post(self.create)
        add("/uploads", self.list, methods=["GET"])
        add("/uploads/{id}", self.get, methods=["GET"])
        add("/uploads/{id}", self.delete, methods=["DELETE"], status_code=204)
        add("/uploads/{id}/files/{file}", self.put, methods=["PUT"], openapi_extra=PART)
        add("/uploads/{id}/complete", self.complete, methods=["POST"], status_code=202)

    async def create(
        self, caller: CallerDep, once: OnceDep, body: Annotated[NewUpload, Depends(reads(NewUpload))]
    ) -> Response:
        """Announce an upload that will come in parts."""
        _check_files(list(body.files))
        files = {file: (spec.size, spec.sha256) for file, spec in body.files.items()}
        record = await self._arrivals.prepare(caller, Plan(name=body.name, fields=body.fields, files=files))

        def work(session: Session) -> Answer:
            view = ArrivalView.of(record(session))
            return Answer(view.model_dump_json(), 201, {"Location": view.status_url})

        return (await self._arrivals.transact(once.doing(work, body.model_dump_json()))).response

    async def list(self, caller: CallerDep) -> ArrivalList:
        """What is under way, and what has ended within a day."""
        return ArrivalList(data=[ArrivalView.of(arrival) for arrival in await self._arrivals.all(caller)])

    async def get(self, id: str, caller: CallerDep) -> ArrivalView:
        """How far an upload is: each file goes on at its `received`."""
        return ArrivalView.of(await self._arrivals.get(caller, id))

    async def put(self, id: str, file: str, request: Request, response: Response, caller: CallerDep) -> ArrivalView:
        """Send a part of a file. It is durable when it is acknowledged; a wrong offset is answered with 409 and the
        right one in Upload-Offset, a wrong checksum with 400, and neither does harm."""
        arrival = await self._arrivals.take(caller, id, file, request.headers, request.stream())
        response.headers["Upload-Offset"] = str(arrival.files[file]["received"])
        return ArrivalView.of(arrival)

    async def complete(self, id: str, caller: CallerDep) -> ArrivalView:
        """Make a revision of it, to be checked; asked again, the answer is the same."""
        return ArrivalView.of(await self._arrivals.complete(caller, id))

    async def delete(self, id: str, caller: CallerDep) -> None:
        """Forget it, with the bytes that have come."""
        await self._arrivals.abort(caller, id)


def _check_files(names: list[str]) -> None:
    """Raises InvalidRequest unless these are files of an adapter, or one archive."""
    packed = [name for name in names if name.lower().endswith(archives.SUFFIXES)]
    plain = all(name.isprintable() and "/" not in name and "\\" not in name for name in names)
    if plain and (names == packed[:1] or set(names) <= set(KEPT)):
        return
    raise InvalidRequest(
        f"files may be {', '.join(KEPT)}, or one archive of them ({', '.join(archives.SUFFIXES)})", param="files"
    )
