"""What the answers of the OpenAI face look like, for its OpenAPI document. Fields that are there only when asked for
have a default here; nothing is built from these records."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

Count = Annotated[int, Field(ge=0)]
Byte = Annotated[int, Field(ge=0, le=255)]
FinishReason = Literal["stop", "length", "tool_calls"]
StopReason = int | str | None


class PromptTokensDetails(BaseModel):
    """Which of the prompt's tokens cost nothing."""

    cached_tokens: Count


class PromptUsage(BaseModel):
    """Tokens of a request without an output."""

    prompt_tokens: Count
    total_tokens: Count


class Usage(PromptUsage):
    """Tokens of a request, over all prompts and choices."""

    completion_tokens: Count
    prompt_tokens_details: PromptTokensDetails


class Token(BaseModel):
    """A token with its log-probability; -9999 stands for minus infinity."""

    token: str
    logprob: Annotated[float, Field(le=0)]
    bytes: list[Byte]


class ChosenToken(Token):
    """A token of the answer, beside the likeliest in its place."""

    top_logprobs: list[Token]


class ChatLogprobs(BaseModel):
    """The tokens of a message."""

    content: list[ChosenToken]
    refusal: None


class Function(BaseModel):
    """What a call calls, and with what: JSON as text."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call that the client is to make."""

    id: str
    type: Literal["function"]
    function: Function


class Message(BaseModel):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[ToolCall] = []


class ChatChoice(BaseModel):
    """One of `n` answers."""

    index: Count
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: StopReason
    token_ids: list[Count] = []


class Head(BaseModel):
    """What every object of an answer begins with; the fingerprint names the revision that spoke."""

    id: str
    created: Count
    model: str
    system_fingerprint: str


class ChatCompletion(Head):
    """The answer of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[Count] = []


class Delta(BaseModel):
    """What a chunk adds to a message."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[dict[str, Any]] = []


class ChatChunkChoice(BaseModel):
    """What a chunk adds to a choice."""

    index: Count
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: StopReason = None
    token_ids: list[Count] = []


class ChatChunk(Head):
    """One event of a streamed chat; the last one, without choices, has the usage if it was asked for."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class CompletionLogprobs(BaseModel):
    """Four lists of one length; null at a prompt's first token, which nothing predicts."""

    text_offset: list[Count]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(BaseModel):
    """One of `n` answers to one of the prompts, or a part of it."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: StopReason
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    token_ids: list[Count] = []
    prompt_token_ids: list[Count] | None = None


class Completion(Head):
    """The answer of /v1/completions, or one event of it."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage | None = None


class Embedding(BaseModel):
    """A vector: numbers, or base64 of them as 32-bit floats."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    """The answer of /v1/embeddings."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: PromptUsage


class Model(BaseModel):
    """The base, or an adapter: then with its base as `parent`, its revision and the digest of its bytes."""

    id: str
    object: Literal["model"]
    created: Count
    owned_by: str
    max_model_len: Count
    root: str
    parent: str | None
    revision: Count = 0
    digest: str = ""
    sampling_defaults: dict[str, Any] = {}  # of the base: what holds for a request that does not say


class ModelList(BaseModel):
    """The answer of /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Tokens(BaseModel):
    """The answer of /tokenize."""

    count: Count
    max_model_len: Count
    tokens: list[Count]
    token_strs: list[str] | None


class Text(BaseModel):
    """The answer of /detokenize."""

    prompt: str


class Alive(BaseModel):
    """The answer of /health."""

    status: Literal["alive"]


class Ready(BaseModel):
    """The answer of /ready."""

    status: Literal["ready"]
    model: str
    running: Count
    waiting: Count
    total_blocks: Count
    free_blocks: Count
    loaded_adapters: Count
    adapter_slots_used: Count
    adapter_slots_busy: Count
    adapter_bytes_used: Count
    adapter_bytes_total: Count


class Version(BaseModel):
    """The answer of /version."""

    version: str
