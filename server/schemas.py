"""The bodies of requests, as OpenAI and vLLM name their fields. None means: not given."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ..engine.params import MAX_LOGPROBS
from .body import Body

Prompt = str | list[str] | list[int] | list[list[int]]


class StreamOptions(Body):
    """What a stream tells besides its text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Sampling(Body):
    """What chat and completions share."""

    model: str
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    seed: int | None = None
    prompt_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int = 0
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None


class Message(Body):
    """One turn. Fields that only the chat template knows (name, tool_call_id, ...) go to it as they are."""

    role: str
    content: Any = None
    tool_calls: list[dict[str, Any]] | None = None


class Conversation(Body):
    """What a chat template makes a prompt of."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class ChatRequest(Sampling, Conversation):
    """POST /v1/chat/completions."""

    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    tool_choice: str | dict[str, Any] | None = None


class CompletionRequest(Sampling):
    """POST /v1/completions."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    best_of: int | None = None
    add_special_tokens: bool = True


class TokenizeRequest(Body):
    """POST /tokenize: either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]
