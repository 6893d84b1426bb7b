"""Fields of chat that other shapes of a conversation take too, under the names that they have there.

OpenAI's responses and Anthropic's messages have no names for them; whoever sends them means chat's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import InvalidRequest
from .schemas import ChatRequest
from .turn import Turn
from .unsupported import IGNORED, Refusals, ignored

TAKEN = frozenset(
    {
        "add_generation_prompt",
        "allowed_token_ids",
        "bad_words",
        "cache_salt",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "frequency_penalty",
        "ignore_eos",
        "include_reasoning",
        "include_stop_str_in_output",
        "logit_bias",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "priority",
        "repetition_penalty",
        "request_id",
        "seed",
        "skip_special_tokens",
        "stop",
        "stop_token_ids",
        "structured_outputs",
        "top_k",
        "truncate_prompt_tokens",
    }
)


ONLY_CHAT = frozenset(
    {
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "n",
        "prompt_logprobs",
        "reasoning_effort",
        "response_format",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "stream_options",
    }
)


def passed_on(unknown: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a body's unknown fields that chat is told; raises InvalidRequest for one that only chat has."""
    for name, value in unknown.items():
        if value is not None and name in ONLY_CHAT:
            message = f"{name} is not supported: it is a field of /v1/chat/completions"
            raise InvalidRequest(message, param=name, code="unsupported_parameter")
    return {name: unknown[name] for name in TAKEN & unknown.keys() & ChatRequest.model_fields.keys()}


def list_ignored(turn: Turn, fields: Mapping[str, Any], refusals: Refusals) -> None:
    """Put `fields`, which nothing was done with, into the header of the answer, beside those of the chat request."""
    own = ignored(fields, refusals)
    if own:
        turn.work.headers[IGNORED] = ",".join(filter(None, (turn.work.headers.get(IGNORED), own[IGNORED])))
