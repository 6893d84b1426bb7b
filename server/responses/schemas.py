"""The body of POST /v1/responses, as OpenAI names its fields. None means: not given."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ...core.body import Body
from ...engine.params import MAX_LOGPROBS
from ..schemas import MAX_MESSAGES, Many

MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class Format(Body):
    """The form of the answer; a schema stands in it, not below it as in chat."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextConfig(Body):
    """How the text of the answer is to be."""

    format: Format | None = None
    verbosity: str | None = None


class Reasoning(Body):
    """How the model is to think."""

    effort: str | None = None


class StreamOptions(Body):
    """How events are written; nothing here hides their lengths."""

    include_obfuscation: bool | None = None


class Tool(Body):
    """What the model may call; only functions are served."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class InputRequest(Body):
    """What a prompt is made of."""

    model: str
    input: str | Annotated[Many[dict[str, Any]], Field(max_length=MAX_MESSAGES)]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Many[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None


class ResponseRequest(InputRequest):
    """POST /v1/responses."""

    background: bool | None = None
    include: Many[str] | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    top_p: float | None = None
