"""What the answers of /v1/responses look like, for the OpenAPI document; nothing is built from these records."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from ..answers import ChosenToken, Count


class Part(BaseModel):
    """A piece of what was said, thought or asked; `text` stands in all but a refusal."""

    type: Literal["input_text", "output_text", "reasoning_text", "refusal"]
    text: str = ""
    refusal: str = ""
    annotations: list[dict[str, Any]] = []
    logprobs: list[ChosenToken] = []


class Item(BaseModel):
    """A message, a thought, a call of a function or its output; each type has its own fields."""

    id: str
    type: Literal["message", "reasoning", "function_call", "function_call_output"]
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["user", "assistant", "system", "developer"] = "assistant"
    content: list[Part] = []
    summary: list[Any] = []
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[Part] = ""


class InputDetails(BaseModel):
    """Which of the input's tokens cost nothing."""

    cached_tokens: Count
    cache_write_tokens: Count


class OutputDetails(BaseModel):
    """Which of the output's tokens were thoughts."""

    reasoning_tokens: Count


class ResponseUsage(BaseModel):
    """Tokens of a response."""

    input_tokens: Count
    input_tokens_details: InputDetails
    output_tokens: Count
    output_tokens_details: OutputDetails
    total_tokens: Count


class Failure(BaseModel):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Incomplete(BaseModel):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseObject(BaseModel):
    """A response as it stands, with what was asked of it."""

    id: str
    object: Literal["response"]
    created_at: Count
    completed_at: Count | None
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: Failure | None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: Count | None
    metadata: dict[str, str]
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: Count
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None


class ResponseEvent(BaseModel):
    """One event of a stream; what else is in it depends on its type."""

    type: str
    sequence_number: Count


class DeletedResponse(BaseModel):
    """What is left of a response."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemList(BaseModel):
    """A page of items."""

    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(BaseModel):
    """How long a prompt would be."""

    object: Literal["response.input_tokens"]
    input_tokens: Count
