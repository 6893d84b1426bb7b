"""A request of /v1/responses becomes a response that is being made: its conversation is put together and checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request

from ...core.body import checked
from ...core.callers import Caller
from ...core.errors import InvalidRequest
from ..body import size_of
from ..counting import num_prompt_tokens
from ..deps import Face
from ..passed import list_ignored
from ..prompts import Room
from ..renamed import speaking
from ..schemas import ChatRequest
from ..turn import Turn, begin
from .asked import NAMES, REFUSED, chat_fields, check_call_ids, sampling_fields, unheeded
from .fitting import newest_that_fit
from .items import items_in
from .schemas import InputRequest, ResponseRequest
from .store import Json

T = TypeVar("T")
CAN_BE_GONE_ON_FROM = ("completed", "incomplete")


@dataclass(frozen=True, slots=True)
class Asking:
    """One request, and whoever sent it."""

    request: Request
    face: Face
    caller: Caller
    body: InputRequest

    async def items(self) -> list[Json]:
        """The conversation: what was kept of it, then the input."""
        before = await self._before()

        def put_together() -> list[Json]:
            items = [*before, *items_in(self.body.input, self.face.engine.model.id)]
            check_call_ids(items, len(before))
            return items

        return await self._beside(put_together)

    async def turn(self, items: list[Json]) -> Turn:
        """The turn that answers `items`, checked; `truncation: auto` leaves the oldest out where not all fit."""
        with speaking(NAMES):
            try:
                turn = await begin(self.request, self.face, self.caller, await self.chat(items), prefix="resp_")
            except InvalidRequest as error:
                if error.code != "context_length_exceeded" or self.body.truncation != "auto":
                    raise
                items = await newest_that_fit(items, self._fits)
                turn = await begin(self.request, self.face, self.caller, await self.chat(items), prefix="resp_")
        list_ignored(turn, unheeded(self.body), REFUSED)
        return turn

    async def chat(self, items: list[Json]) -> ChatRequest:
        """The chat request that this one stands for."""
        sampling = sampling_fields(self.body) if isinstance(self.body, ResponseRequest) else {}
        with speaking(NAMES):
            return await self._beside(lambda: checked(ChatRequest, {**chat_fields(self.body, items), **sampling}))

    async def num_tokens(self, items: list[Json], room: Room | None = None) -> int:
        """How long the prompt of `items` is; with `room`, InvalidRequest is raised for one that is far too long."""
        with speaking(NAMES):
            return await num_prompt_tokens(self.request, self.face, self.caller, await self.chat(items), room)

    async def _beside(self, work: Callable[[], T]) -> T:
        """What comes of `work`; beside the event loop where the request is large."""
        return await self.face.aside.short(size_of(self.request), work)

    async def _fits(self, items: list[Json]) -> bool:
        answer = self.body.max_output_tokens if isinstance(self.body, ResponseRequest) else None
        model = self.face.engine.model
        try:
            return await self.num_tokens(items, Room(model)) + (answer or 1) <= model.max_model_len
        except InvalidRequest as error:
            if error.code != "context_length_exceeded":
                raise
            return False

    async def _before(self) -> list[Json]:
        """The conversation that the input goes on from."""
        id = self.body.previous_response_id
        if id is None:
            return []
        store = self.face.responses.needed("previous_response_id")
        response, items = await store.find(self.caller, id), await store.input_of(self.caller, id)
        if response is None or items is None:
            message = f"previous_response_id: no response {json.dumps(id[:64])} is kept here"
            raise _wrong(message, "previous_response_not_found")
        if response["status"] not in CAN_BE_GONE_ON_FROM:
            message = f"previous_response_id: that response is {response['status']}; one can go on from a completed one"
            raise _wrong(message, "previous_response_not_completed")
        return [*items, *response["output"]]


def _wrong(message: str, code: str) -> InvalidRequest:
    return InvalidRequest(message, param="previous_response_id", code=code)
