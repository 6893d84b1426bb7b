"""The bodies of requests, as OpenAI and vLLM name their fields. None means: not given."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from ..core.body import Body
from ..engine.params import MAX_LOGPROBS, Pooling
from .request_ids import WRITTEN

T = TypeVar("T")
# The first wrong item is the last that is looked at: a body has room for millions, and each would become an error.
Many = Annotated[list[T], Field(fail_fast=True)]
MAX_TOOLS = 512
TOOL_NAME = r"^[A-Za-z0-9_-]{1,64}$"  # OpenAI's rule
MAX_MESSAGES = 1 << 16  # a thousand bytes of memory each
MAX_TEMPLATE = 1 << 16  # characters; the largest of models have 20,000


def _all_numbers(given: object) -> object:
    """Raises at the first value that is none, as `Many` does."""
    for value in given.values() if isinstance(given, dict) else ():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise PydanticCustomError("float_type", "Input should be a valid number")
    return given


Biases = Annotated[dict[str, float], BeforeValidator(_all_numbers)]
# Only told, and checked where the words for it are.
Written = Annotated[str, Field(json_schema_extra={"minLength": 1})]
TokenId = Annotated[int, Field(json_schema_extra={"minimum": 0})]
SOME = {"minItems": 1}
TokenIds = Annotated[Many[TokenId], Field(json_schema_extra=SOME)]
Prompt = (
    Written
    | Annotated[Many[Written], Field(json_schema_extra=SOME)]
    | TokenIds
    | Annotated[Many[TokenIds], Field(json_schema_extra=SOME)]
)


class StreamOptions(Body):
    """What a stream tells besides its text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(Body):
    """What `response_format` says of a schema."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of an answer, as OpenAI names it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputsBody(Body):
    """The form of an answer, as vLLM names it; which combinations there are, engine/grammar/asked.py knows."""

    json_: dict[str, Any] | str | bool | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Many[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None


class Placed(Body):
    """How a request stands to others."""

    priority: int = 0
    cache_salt: Annotated[str, Field(min_length=1)] | None = None


class Sampling(Placed):
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
    logit_bias: Biases | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Many[str] | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    stop: Written | Many[Written] | None = None
    stop_token_ids: Many[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    seed: int | None = None
    prompt_logprobs: int | None = None
    use_beam_search: bool | None = None
    best_of: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsBody | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    request_id: Annotated[str, Field(pattern=WRITTEN)] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None


Content = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "null"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                    },
                },
            ]
        }
    ),
]


class Message(Body):
    """One turn. Fields that only the chat template knows (name, tool_call_id, ...) go to it as they are."""

    role: str
    content: Content = None
    tool_calls: Many[dict[str, Any]] | None = None


class Function(Body):
    """What a tool is called, what it does, and the JSON schema of its arguments; without one it has none."""

    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """One tool that the model may call."""

    type: Literal["function"] = "function"
    function: Function


Tools = Annotated[Many[Tool], Field(max_length=MAX_TOOLS)]


class Conversation(Body):
    """What a chat template makes a prompt of."""

    messages: Annotated[Many[Message], Field(max_length=MAX_MESSAGES, json_schema_extra=SOME)]
    tools: Tools | None = None
    documents: Many[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ChatRequest(Sampling, Conversation):
    """POST /v1/chat/completions."""

    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class CompletionRequest(Sampling):
    """POST /v1/completions."""

    prompt: Prompt
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    add_special_tokens: bool = True


class EmbeddingRequest(Placed):
    """POST /v1/embeddings."""

    model: str
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool = True
    normalize: bool | None = None
    pooling: Pooling | None = None
    request_id: Annotated[str, Field(pattern=WRITTEN)] | None = None


class TokenizeRequest(Body):
    """POST /tokenize: either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[Many[Message], Field(max_length=MAX_MESSAGES, json_schema_extra=SOME)] | None = None
    tools: Tools | None = None
    documents: Many[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: Many[TokenId]
