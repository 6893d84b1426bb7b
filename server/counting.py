"""How long a prompt would be, for those who ask before they send it; it may be longer than the context."""

from __future__ import annotations

from fastapi import Request

from ..core.callers import Caller
from . import prompts
from .body import size_of
from .deps import Face, resolved
from .effort import heeded
from .schemas import ChatRequest
from .tool_use import ToolUse
from .unsupported import CHAT, refuse


async def num_prompt_tokens(
    request: Request, face: Face, caller: Caller, chat: ChatRequest, room: prompts.Room | None = None
) -> int:
    """The tokens that a chat's answer would follow; raises what the chat would for its model and its messages.

    With `room` it raises InvalidRequest, sooner than they could be counted, for many more than that.
    """
    refuse(chat.unknown, CHAT)
    await resolved(request, caller, chat.model, chat.user)

    def count() -> int:
        tools, body = ToolUse.of(chat).shown, heeded(face, chat)
        return len(prompts.of_messages(face, chat.messages, body, tools=tools, room=room))

    return await face.aside.work(size_of(request), count)
