"""How long a prompt would be, for those who ask before they send it; it may be longer than the context."""

from __future__ import annotations

from fastapi import Request

from ..core.callers import Caller
from . import prompts
from .deps import Face, resolved
from .effort import heeded
from .schemas import ChatRequest
from .tool_use import ToolUse
from .unsupported import CHAT, refuse


async def num_prompt_tokens(request: Request, face: Face, caller: Caller, chat: ChatRequest) -> int:
    """The tokens that a chat's answer would follow; raises what the chat would for its model and its messages."""
    refuse(chat.unknown, CHAT)
    chat = heeded(face, chat)
    await resolved(request, caller, chat.model, chat.user)
    return len(await prompts.of_messages(face, chat.messages, chat, tools=ToolUse.of(chat).shown))
