"""What the answers of /v1/messages look like, for the OpenAPI document; nothing is built from these records."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from .. import answers


class Count(BaseModel):
    """How long a prompt would be."""

    input_tokens: answers.Count


class Block(BaseModel):
    """Words, thoughts, or the use of a tool; each type has its own fields."""

    type: Literal["text", "thinking", "tool_use"]
    text: str = ""
    thinking: str = ""
    signature: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}


class MessageUsage(BaseModel):
    """Tokens of a message; those of the prompt are the sum of three."""

    input_tokens: answers.Count
    cache_creation_input_tokens: answers.Count
    cache_read_input_tokens: answers.Count
    output_tokens: answers.Count


class MessageObject(BaseModel):
    """A message of the assistant."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: MessageUsage


class MessageEvent(BaseModel):
    """One event of a stream; what else is in it depends on its type."""

    type: str
