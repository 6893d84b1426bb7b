"""/v1/responses: made, streamed, made in the background, kept, looked at, gone on from and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from ...core.body import describes
from ...core.callers import Caller
from ...core.errors import InvalidRequest, NotFound, ShuttingDown
from ..body import reads
from ..deps import BY_KEY, AskerDep, CallerDep, Face, FaceDep
from ..openapi import answers
from ..records import CANCELLED
from ..request_ids import request_id_of
from ..route_names import route_of
from ..sse import EventStream, event, unless_gone
from .answers import DeletedResponse, InputTokens, ItemList, ResponseEvent, ResponseObject
from .begin import Asking
from .event_log import Log
from .making import Making
from .output import Event
from .schemas import InputRequest, ResponseRequest
from .shelf import STOPPED, missing
from .store import Json, ResponseStore

router = APIRouter(tags=["responses"], dependencies=BY_KEY)
ANSWERS = answers(ResponseObject, event=ResponseEvent)


@router.post("/v1/responses", openapi_extra=describes(ResponseRequest), responses=ANSWERS)
async def create(
    request: Request,
    face: FaceDep,
    caller: AskerDep,
    body: Annotated[ResponseRequest, Depends(reads(ResponseRequest))],
) -> Response:
    """Make a response, on the base or on an adapter."""
    if body.background:
        caller = replace(caller, patient=True)
    return await unless_gone(request, _answer(Asking(request, face, caller, body), body))


@router.post("/v1/responses/input_tokens", openapi_extra=describes(InputRequest), responses=answers(InputTokens))
async def count(
    request: Request, face: FaceDep, caller: CallerDep, body: Annotated[InputRequest, Depends(reads(InputRequest))]
) -> Json:
    """How many tokens a request would have before its answer."""
    asking = Asking(request, face, caller, body)
    return {"object": "response.input_tokens", "input_tokens": await asking.num_tokens(await asking.items())}


@router.get("/v1/responses/{response_id}", responses=ANSWERS)
async def show(
    face: FaceDep,
    caller: CallerDep,
    response_id: str,
    stream: Annotated[bool, Query(description="go on hearing one that is made in the background")] = False,
    starting_after: Annotated[int, Query(ge=-1, description="the number of the last event that was heard")] = -1,
) -> Response:
    """A response as it stands."""
    found = await _store(face, response_id).find(caller, response_id)
    if found is None:
        raise missing(response_id)
    if not stream:
        return JSONResponse(found)
    heard = face.responses.log(response_id)
    if heard is None:
        message = "stream: this response is not being made by this server now; get it without stream"
        raise InvalidRequest(message, param="stream")
    return EventStream(heard.read(starting_after + 1), last=b"")


@router.post("/v1/responses/{response_id}/cancel", responses=answers(ResponseObject))
async def cancel(face: FaceDep, caller: CallerDep, response_id: str) -> Json:
    """Stop making a response in the background; one that has ended stays as it is."""
    store = _store(face, response_id)
    found = await store.find(caller, response_id)
    if found is None:
        raise missing(response_id)
    if not found["background"]:
        message = "only a response that was begun with background: true can be cancelled; hang up on others"
        raise InvalidRequest(message, param="response_id")
    cancelled = await store.finish(caller, response_id, {"status": "cancelled"})
    face.responses.cancel(response_id)
    if cancelled is None:
        raise missing(response_id)
    return cancelled


@router.delete("/v1/responses/{response_id}", responses=answers(DeletedResponse))
async def delete(face: FaceDep, caller: CallerDep, response_id: str) -> Json:
    """Forget a response, and stop making it."""
    if not await _store(face, response_id).forget(caller, response_id):
        raise missing(response_id)
    face.responses.cancel(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.get("/v1/responses/{response_id}/input_items", responses=answers(ItemList))
async def input_items(
    face: FaceDep,
    caller: CallerDep,
    response_id: str,
    after: Annotated[str | None, Query(description="the id of the item before the first")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> Json:
    """The items that a response was made from, those of earlier turns included."""
    items = await _store(face, response_id).input_of(caller, response_id)
    if items is None:
        raise missing(response_id)
    if order == "desc":
        items.reverse()
    if after is not None:
        places = [at for at, item in enumerate(items) if item["id"] == after]
        if not places:
            raise NotFound(f"after: this response has no item {after[:64]!r}", param="after", code="item_not_found")
        items = items[places[0] + 1 :]
    page = items[:limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": len(items) > limit}


async def _answer(asking: Asking, body: ResponseRequest) -> Response:
    face, caller, keeps = asking.face, asking.caller, _keeps(asking.face, body)
    if body.background:
        face.responses.check_room(caller)
    items = await asking.items()
    turn = await asking.turn(items)
    making = Making(turn.work.id, body, turn, None)
    if body.background:
        return await _in_background(making, asking, face.responses.needed("background"), items)
    if keeps:
        making.keep = partial(face.responses.needed("store").keep, caller, items=items, ended=True)
    if body.stream:
        return EventStream(_streamed(making, face), turn.work.headers, last=b"")
    async with aclosing(making.events(face)) as events:
        async for _, fields in events:
            last = fields
    return JSONResponse(last["response"], headers=turn.work.headers)


async def _in_background(making: Making, asking: Asking, store: ResponseStore, items: Sequence[Json]) -> Response:
    """Begin, and say so, or what comes of it."""
    face, caller, headers, scope = asking.face, asking.caller, making.turn.work.headers, asking.request.scope
    making.keep = partial(store.finish, caller, making.id)
    begun, log = making.shown("in_progress"), Log()
    with face.responses.place(making.id, caller):
        await store.keep(caller, begun, items, ended=False)
        apart = replace(face, record=face.record.going_on(route_of(scope), request_id_of(scope, headers)))
        face.responses.start(making.id, _made(making, apart, caller, store, log), log)
    if making.body.stream:
        return EventStream(log.read(), headers, last=b"")
    return JSONResponse(begun, headers=headers)


async def _made(making: Making, face: Face, caller: Caller, store: ResponseStore, log: Log) -> None:
    """Make a response, whoever listens; it is left in the store, and told in the record, as what it ended as."""
    numbered = _Numbered()
    for found in making.opening():
        log.add(numbered(found))
    try:
        async with aclosing(making.events(face, begun=True)) as events:
            async for found in events:
                log.add(numbered(found))
    except Exception as error:
        face.record.fail(error)
        failed = making.failed(error)
        log.add(numbered(("response.failed", {"response": failed})))
        await store.finish(caller, making.id, failed)
    except asyncio.CancelledError:
        ended = {"status": "failed", "error": STOPPED}
        kept = await store.finish(caller, making.id, ended)
        face.record.error = ShuttingDown.code if kept is not None and kept["status"] == "failed" else CANCELLED
        shown = kept or making.shown("in_progress") | ended
        log.add(numbered((f"response.{shown['status']}", {"response": shown})))
        raise
    finally:
        face.record.end()


async def _streamed(making: Making, face: Face) -> AsyncGenerator[bytes, None]:
    """The events on the wire; a failure after the first of them is one too."""
    numbered, begun = _Numbered(), False
    try:
        async with aclosing(making.events(face)) as events:
            async for found in events:
                yield numbered(found)
                begun = True
    except Exception as error:
        if not begun:
            raise
        yield numbered(("response.failed", {"response": making.failed(error)}))


class _Numbered:
    """Events on the wire, counted."""

    def __init__(self) -> None:
        self._number = -1

    def __call__(self, found: Event) -> bytes:
        name, fields = found
        self._number += 1
        return event({"type": name, "sequence_number": self._number, **fields}, name)


def _keeps(face: Face, body: ResponseRequest) -> bool:
    """Whether the response is to be kept, as by default where that can be. Raises InvalidRequest where it cannot."""
    if body.background and body.store is False:
        raise InvalidRequest("background: what runs on must be kept; leave store out", param="background")
    if body.store:
        face.responses.needed("store")
    return body.store is not False and face.responses.store is not None


def _store(face: Face, id: str) -> ResponseStore:
    """The store to look into; where nothing is kept, there is no response."""
    if face.responses.store is None:
        raise missing(id)
    return face.responses.store
