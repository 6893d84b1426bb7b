"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from ..core.body import describes
from ..core.callers import Caller
from ..engine.request import Chunk
from .answers import ChatChunk, ChatCompletion
from .body import reads
from .deps import BY_KEY, AskerDep, Face, FaceDep
from .generation import Choice
from .logprobs import chat_content, of_prompt
from .openapi import answers
from .schemas import ChatRequest, StreamOptions
from .speech.base import CallDelta, Delta, Heard
from .sse import EventStream, event, unless_gone
from .turn import News, Said, Turn, begin
from .writing import OneByOne, answered

router = APIRouter(dependencies=BY_KEY)
ANSWERS = answers(ChatCompletion, event=ChatChunk)


@router.post("/v1/chat/completions", openapi_extra=describes(ChatRequest), responses=ANSWERS)
async def chat_completions(
    request: Request, face: FaceDep, caller: AskerDep, body: Annotated[ChatRequest, Depends(reads(ChatRequest))]
) -> Response:
    """Continue a conversation, on the base or on an adapter."""
    return await unless_gone(request, _answer(request, face, caller, body))


async def _answer(request: Request, face: Face, caller: Caller, body: ChatRequest) -> Response:
    turn = await begin(request, face, caller, body)
    view = ChatView(turn)
    if body.stream:
        return EventStream(view.events(face), turn.work.headers)
    whole = partial(view.whole, await turn.whole(face))
    return await answered(face.aside, whole, turn.work.headers, size=view.size())


@dataclass(frozen=True, slots=True)
class ChatView:
    """One turn as OpenAI's chat shows it, whole or piece by piece."""

    turn: Turn

    def whole(self, said: Sequence[Said]) -> dict[str, Any]:
        """The chat.completion object."""
        body, work, found = self.turn.body, self.turn.work, self.turn.found
        answer = {
            **work.head("chat.completion"),
            "choices": [self._choice(one) for one in said],
            "usage": found.usage.shown(),
        }
        if body.prompt_logprobs is not None:
            answer["prompt_logprobs"] = of_prompt(found.prompt_logprobs.get(0), self.turn.speller, body.prompt_logprobs)
        if body.return_token_ids:
            answer["prompt_token_ids"] = list(work.prompts[0])
        return answer

    def size(self) -> int:
        """Tokens and scores that the answer may tell of."""
        scores = max(self.turn.body.top_logprobs or 0, self.turn.body.prompt_logprobs or 0)
        return self.turn.usage.num_tokens * (1 + scores)

    async def events(self, face: Face) -> AsyncGenerator[bytes, None]:
        """The chat.completion.chunk events."""
        options = self.turn.body.stream_options or StreamOptions()
        head, usage = self.turn.work.head("chat.completion.chunk"), self.turn.usage
        async with aclosing(self.turn.news(face)) as stream:
            async for news in stream:
                choices = [_opening(news.index)] if news.is_first else []
                choices += self._news(news)
                told = usage.shown() if options.continuous_usage_stats else None
                if choices:
                    yield b"".join(_event(head, choice, options, told) for choice in choices)
        if options.include_usage:
            yield event({**head, "choices": [], "usage": usage.shown()})

    def _choice(self, said: Said) -> dict[str, Any]:
        shown = {
            "index": said.index,
            "message": _message(said.heard),
            "logprobs": self._logprobs(said.choice),
            "finish_reason": said.finish_reason,
            "stop_reason": said.choice.stop_reason,
        }
        return {**shown, "token_ids": said.choice.token_ids} if self.turn.body.return_token_ids else shown

    def _news(self, news: News) -> list[dict[str, Any]]:
        """What a chunk brings, a choice for each event; text that is held back brings nothing yet."""
        chunk, shows_ids = news.chunk, self.turn.body.return_token_ids
        if not (news.delta or chunk.logprobs or chunk.finish_reason or shows_ids):
            return []
        choices: list[dict[str, Any]] = [
            {"index": news.index, "delta": delta, "logprobs": None, "finish_reason": None}
            for delta in deltas_of(news.delta, has_ended=chunk.finish_reason is not None)
        ]
        first, last = choices[0], choices[-1]
        first["logprobs"], last["finish_reason"] = self._logprobs(chunk), news.finish_reason
        if chunk.finish_reason:
            last["stop_reason"] = chunk.stop_reason
        if shows_ids:
            first["token_ids"] = chunk.token_ids
        return choices

    def _logprobs(self, found: Choice | Chunk) -> dict[str, Any] | None:
        body = self.turn.body
        if not body.logprobs:
            return None
        scores, top, speller = found.logprobs or (), body.top_logprobs or 0, self.turn.speller
        return {"content": OneByOne(lambda: chat_content(scores, top, speller)), "refusal": None}


def _message(heard: Heard) -> dict[str, Any]:
    """What the assistant said; `content` is null where calls say it all."""
    message: dict[str, Any] = {"role": "assistant", "content": heard.content or (None if heard.calls else "")}
    message["refusal"] = None
    if heard.reasoning:
        message["reasoning_content"] = message["reasoning"] = heard.reasoning
    if heard.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in heard.calls
        ]
    return message


def deltas_of(delta: Delta, *, has_ended: bool) -> list[dict[str, Any]]:
    """Each call in one of its own, and the end after them: OpenAI's client takes a call as done by what follows it."""
    shown: dict[str, Any] = {"content": delta.content} if delta.content else {}
    if delta.reasoning:
        shown["reasoning_content"] = shown["reasoning"] = delta.reasoning
    if not delta.calls:
        return [shown]
    first, *others = ({"tool_calls": [_call(news)]} for news in delta.calls)
    return [shown | first, *others, *([{}] if has_ended else [])]


def _call(news: CallDelta) -> dict[str, Any]:
    if news.name is None:
        return {"index": news.index, "function": {"arguments": news.arguments}}
    function = {"name": news.name, "arguments": news.arguments}
    return {"index": news.index, "id": news.id, "type": "function", "function": function}


def _opening(index: int) -> dict[str, Any]:
    delta = {"role": "assistant", "content": ""}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _event(head: dict[str, Any], choice: dict[str, Any], options: StreamOptions, usage: dict[str, Any] | None) -> bytes:
    payload = {**head, "choices": [choice]}
    if options.include_usage:
        payload["usage"] = usage
    return event(payload)
