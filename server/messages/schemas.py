"""The bodies of POST /v1/messages and its count_tokens, as Anthropic names their fields. None means: not given."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ...core.body import Body
from ..schemas import MAX_MESSAGES, Many

Blocks = str | Many[dict[str, Any]]
MOST_TOKENS = (1 << 31) - 1  # that may be asked for; clients ask for more than a context holds, and get that


class Said(Body):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class Metadata(Body):
    """Who asks the caller."""

    user_id: str | None = None


class Thinking(Body):
    """Whether the model is to think first."""

    type: Literal["enabled", "adaptive", "disabled"]


class OutputFormat(Body):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """How the answer is to be."""

    effort: str | None = None
    format: OutputFormat | None = None


class Tool(Body):
    """What the model may call; only tools that the caller runs are served."""

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Body):
    """Whether the model calls a tool, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class CountRequest(Body):
    """POST /v1/messages/count_tokens: what a prompt is made of."""

    model: str
    messages: Annotated[Many[Said], Field(max_length=MAX_MESSAGES)]
    system: Blocks | None = None
    tools: Many[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1, le=MOST_TOKENS)
    stop_sequences: Many[str] | None = None
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    stream: bool | None = None
