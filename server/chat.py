"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from ..core.body import describes
from ..core.callers import Caller
from ..engine.metering import Work
from ..engine.request import Chunk
from . import prompts, sampling
from .body import reads
from .deps import CallerDep, Face, FaceDep, resolved
from .generation import Choice, Collected, Generation, Usage, new_id
from .logprobs import Speller, chat_content, of_prompt
from .request_ids import named
from .schemas import ChatRequest, StreamOptions
from .sse import EventStream, event, unless_gone
from .unsupported import CHAT, ignored, refuse, refuse_tools

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=describes(ChatRequest))
async def chat_completions(
    request: Request, face: FaceDep, caller: CallerDep, body: Annotated[ChatRequest, Depends(reads(ChatRequest))]
) -> Response:
    """Continue a conversation, on the base or on an adapter."""
    return await unless_gone(request, _begin(request, face, caller, body))


async def _begin(request: Request, face: Face, caller: Caller, body: ChatRequest) -> Response:
    refuse(body.unknown, CHAT)
    refuse_tools(body.tools, body.tool_choice)
    sampling.check_stream(body)
    resolution = await resolved(request, caller, body.model, body.user)
    prompt = await prompts.of_messages(face.engine, body.messages, body)
    prompt = prompts.truncated(prompt, body.truncate_prompt_tokens, face.engine.model.max_model_len)
    params = sampling.of_chat(body, face.engine, len(prompt))
    work = Work(caller=caller, resolution=resolution, prompts=[prompt], params=[params])
    headers = {**named(body.request_id), **ignored(body.unknown, CHAT)}
    generation = Generation(new_id("chatcmpl"), body.model, work, body.priority, headers=headers)
    view = ChatView(body, generation, Speller(face.engine.text, bool(body.return_tokens_as_token_ids)))
    if body.stream:
        return EventStream(view.events(face), generation.headers)
    whole = view.whole(await Collected.of(generation.run(face)))
    return JSONResponse(whole, headers=generation.headers)


@dataclass(frozen=True, slots=True)
class ChatView:
    """One chat answer as its client sees it, whole or piece by piece."""

    body: ChatRequest
    work: Generation
    speller: Speller

    def whole(self, found: Collected) -> dict[str, Any]:
        """The chat.completion object."""
        answer = {
            **self.work.head("chat.completion"),
            "choices": [self._choice(index, choice) for _, index, choice in found.sorted()],
            "usage": found.usage.shown(),
        }
        if self.body.prompt_logprobs is not None:
            answer["prompt_logprobs"] = of_prompt(found.prompt_logprobs.get(0), self.speller, self.body.prompt_logprobs)
        if self.body.return_token_ids:
            answer["prompt_token_ids"] = list(self.work.prompts[0])
        return answer

    async def events(self, face: Face) -> AsyncGenerator[bytes, None]:
        """The chat.completion.chunk events."""
        options = self.body.stream_options or StreamOptions()
        head, usage = self.work.head("chat.completion.chunk"), Usage()
        async with aclosing(self.work.run(face)) as stream:
            async for prompt_at, chunk in stream:
                choices = [_opening(chunk.index)] if usage.count(prompt_at, chunk) else []
                choices += self._news(chunk)
                told = usage.shown() if options.continuous_usage_stats else None
                if choices:
                    yield b"".join(_event(head, choice, options, told) for choice in choices)
        if options.include_usage:
            yield event({**head, "choices": [], "usage": usage.shown()})

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        shown = {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        return {**shown, "token_ids": choice.token_ids} if self.body.return_token_ids else shown

    def _news(self, chunk: Chunk) -> list[dict[str, Any]]:
        """What a chunk brings, in at most one choice; text that is held back brings nothing yet."""
        if not (chunk.text or chunk.logprobs or chunk.finish_reason or self.body.return_token_ids):
            return []
        choice = {
            "index": chunk.index,
            "delta": {"content": chunk.text} if chunk.text else {},
            "logprobs": self._logprobs(chunk),
            "finish_reason": chunk.finish_reason,
        }
        if chunk.finish_reason:
            choice["stop_reason"] = chunk.stop_reason
        if self.body.return_token_ids:
            choice["token_ids"] = chunk.token_ids
        return [choice]

    def _logprobs(self, found: Choice | Chunk) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        content = chat_content(found.logprobs or (), self.body.top_logprobs or 0, self.speller)
        return {"content": content, "refusal": None}


def _opening(index: int) -> dict[str, Any]:
    delta = {"role": "assistant", "content": ""}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _event(head: dict[str, Any], choice: dict[str, Any], options: StreamOptions, usage: dict[str, Any] | None) -> bytes:
    payload = {**head, "choices": [choice]}
    if options.include_usage:
        payload["usage"] = usage
    return event(payload)
