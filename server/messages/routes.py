"""POST /v1/messages and /v1/messages/count_tokens: chat in Anthropic's shape."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from ...core.body import describes
from ...core.callers import Caller
from ...core.errors import InvalidRequest
from ..body import reads, size_of
from ..counting import num_prompt_tokens
from ..deps import BY_KEY, AskerDep, CallerDep, Face, FaceDep
from ..effort import knows
from ..errors import ours
from ..openapi import answers
from ..passed import list_ignored
from ..renamed import speaking
from ..sse import EventStream, event, unless_gone
from ..turn import Turn, begin
from .answers import Count, MessageEvent, MessageObject
from .asked import NAMES, REFUSED, THINKING, chat_of, unheeded_in
from .errors import told
from .schemas import CountRequest, MessagesRequest
from .telling import Telling

router = APIRouter(tags=["messages"], dependencies=BY_KEY)


@router.post(
    "/v1/messages",
    openapi_extra=describes(MessagesRequest),
    responses=answers(MessageObject, event=MessageEvent),
)
async def create(
    request: Request,
    face: FaceDep,
    caller: AskerDep,
    body: Annotated[MessagesRequest, Depends(reads(MessagesRequest))],
) -> Response:
    """Continue a conversation, on the base or on an adapter."""
    return await unless_gone(request, _answer(request, face, caller, body))


@router.post("/v1/messages/count_tokens", openapi_extra=describes(CountRequest), responses=answers(Count))
async def count(
    request: Request, face: FaceDep, caller: CallerDep, body: Annotated[CountRequest, Depends(reads(CountRequest))]
) -> dict[str, Any]:
    """How many tokens a request would have before its answer."""
    make = partial(chat_of, body, face.engine.model.id, max_tokens=None)
    chat = await face.aside.short(size_of(request), make)
    with speaking(NAMES):
        return {"input_tokens": await num_prompt_tokens(request, face, caller, chat)}


async def _answer(request: Request, face: Face, caller: Caller, body: MessagesRequest) -> Response:
    turn, reaches_end = await _begun(request, face, caller, body)
    thinks = knows(face, turn.body, THINKING)
    ignored = await face.aside.short(size_of(request), partial(unheeded_in, body, thinks=thinks))
    list_ignored(turn, ignored, REFUSED)
    telling = Telling(turn, body.model, reaches_end)
    if body.stream:
        return EventStream(_streamed(telling, face), turn.work.headers, last=b"")
    async with aclosing(telling.events(face)) as events:
        async for _ in events:
            pass  # the whole message tells it all
    return JSONResponse(telling.whole(), headers=turn.work.headers)


async def _begun(request: Request, face: Face, caller: Caller, body: MessagesRequest) -> tuple[Turn, bool]:
    """The turn, and whether the context holds less than max_tokens: clients ask for as much as their model has."""
    make, size = partial(chat_of, body, face.engine.model.id), size_of(request)
    with speaking(NAMES):
        try:
            chat = await face.aside.short(size, partial(make, max_tokens=body.max_tokens))
            return await begin(request, face, caller, chat, prefix="msg_"), False
        except InvalidRequest as error:
            if error.code != "context_length_exceeded" or error.param == "messages":
                raise
            chat = await face.aside.short(size, partial(make, max_tokens=None))
            return await begin(request, face, caller, chat, prefix="msg_"), True


async def _streamed(telling: Telling, face: Face) -> AsyncGenerator[bytes, None]:
    """The events on the wire; a failure after the first of them is one too."""
    begun = False
    try:
        async with aclosing(telling.events(face)) as events:
            async for name, fields in events:
                yield event({"type": name, **fields}, name)
                begun = True
    except Exception as error:
        if not begun:
            raise
        yield event(told(ours(error)), "error")
