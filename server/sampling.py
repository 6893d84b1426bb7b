"""A request body becomes SamplingParams, checked against this model's context and vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.errors import InvalidRequest
from ..engine.client import EngineFacts, ModelInfo
from ..engine.params import SamplingParams
from .constraints import constraint_of
from .schemas import ChatRequest, CompletionRequest, Sampling

COMPLETION_TOKENS = 16  # OpenAI's default max_tokens of /v1/completions
MAX_SCORES = 1 << 19  # of prompt tokens in one answer, each with its likely ones, where it has several choices
SHARED = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "max_tokens",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "seed",
    "prompt_logprobs",
    "use_beam_search",
    "best_of",
    "length_penalty",
    "early_stopping",
)
LONG = ("logit_bias", "allowed_token_ids", "stop_token_ids", "bad_words")  # fields that may name thousands of tokens
MAX_RULES = 1 << 20  # of them, over all prompts of a request: the engine looks through each prompt's between two steps
# What a beam search needs and the model's own defaults would not have it; what a caller says of these is heard.
BEAM_DEFAULTS: Mapping[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


def of_chat(body: ChatRequest, engine: EngineFacts, num_prompt: int) -> SamplingParams:
    """The params of a chat request; without max_tokens the answer may fill the context."""
    fields = _shared(body, engine.model.vocab_size)
    if body.max_completion_tokens is not None:
        fields["max_tokens"] = body.max_completion_tokens
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    asked = "max_completion_tokens" if body.max_completion_tokens is not None else "max_tokens"
    _check_context(engine.model, num_prompt, fields.get("max_tokens"), params=("messages", asked))
    fields = {"max_tokens": None, **engine.default_params, **fields}
    return SamplingParams(**{**fields, "max_tokens": _most(fields, engine.model, num_prompt)})


def of_completion(body: CompletionRequest, engine: EngineFacts, lengths: Sequence[int]) -> list[SamplingParams]:
    """The params of each prompt of a completion request, by its length. `max_tokens` 0 with `echo` scores them alone.

    Prompts that have the same share one object, and others all that may be long in it. For a worker thread.
    """
    _check_rules(body, len(lengths))
    fields = _shared(body, engine.model.vocab_size)
    if body.echo and body.truncate_prompt_tokens is not None:
        raise InvalidRequest("echo does not go with truncate_prompt_tokens: send the prompt's end alone", param="echo")
    if body.suffix:
        fields["stop_token_ids"] = (*fields.get("stop_token_ids", ()), *_ends_of_middle(body, engine))
    if body.logprobs is not None:
        fields["logprobs"] = body.logprobs
        if body.echo and body.use_beam_search:
            raise InvalidRequest("echo with logprobs does not go with use_beam_search", param="echo")
        if body.echo:
            fields["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    if scores_only(body):
        fields["max_tokens"] = 1
    for length in lengths:
        _check_context(engine.model, length, fields.get("max_tokens"), params=("prompt", "max_tokens"))
    fields = {"max_tokens": COMPLETION_TOKENS, **engine.default_params, **fields}
    made: dict[int | None, SamplingParams] = {}
    each = [_most(fields, engine.model, length) for length in lengths]
    for most in each:
        if not made:
            made[most] = engine.text.spelled(SamplingParams(**{**fields, "max_tokens": most}))
        elif most not in made:
            made[most] = replace(made[each[0]], max_tokens=most)
    return [made[most] for most in each]


def _check_rules(body: Sampling, num_prompts: int) -> None:
    """Raises InvalidRequest for rules too long to be laid before the engine once for each prompt."""
    for name in LONG if num_prompts > 1 else ():
        given = getattr(body, name) or ()
        size = sum(map(len, given)) if name == "bad_words" else len(given)
        if size * num_prompts > MAX_RULES:
            unit = "characters" if name == "bad_words" else "tokens"
            text = f"{name}: {size} {unit} for each of {num_prompts} prompts are over {MAX_RULES} in all"
            raise InvalidRequest(text, param=name)


def _ends_of_middle(body: CompletionRequest, engine: EngineFacts) -> tuple[int, ...]:
    """What ends the text between prompt and suffix; raises InvalidRequest for fields that speak of one prompt."""
    for param in ("echo", "truncate_prompt_tokens"):
        if getattr(body, param):
            raise InvalidRequest(f"{param} does not go with suffix: the prompt is in two parts", param=param)
    return () if engine.text.infill is None else engine.text.infill.ends


def scores_only(body: CompletionRequest) -> bool:
    """Whether the prompt is to come back with nothing after it."""
    return bool(body.echo) and body.max_tokens == 0


def rows(body: Sampling) -> tuple[str, int]:
    """The field that says how many texts are computed of each prompt, choices or beams of a search, and how many."""
    if body.use_beam_search and body.best_of:
        return "best_of", body.best_of
    return "n", body.n or 1


def check_scores(params: Sequence[SamplingParams], prompts: Sequence[Sequence[int]]) -> None:
    """Raises InvalidRequest for scores of prompts that are too many; one choice of one prompt may have all of its."""
    if sum(each.n for each in params) == 1:
        return
    asked = [(each.n * len(prompt), each.prompt_logprobs) for each, prompt in zip(params, prompts, strict=True)]
    if sum(tokens * (top + 1) for tokens, top in asked if top is not None) > MAX_SCORES:
        message = f"prompt_logprobs: over {MAX_SCORES} scores in all choices; send fewer prompts at once, or a lower n"
        raise InvalidRequest(message, param="prompt_logprobs")


def check_stream(body: Sampling) -> None:
    """Raises InvalidRequest for what only makes sense with, or without, a stream."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is only allowed with stream: true", param="stream_options")
    if body.stream and body.use_beam_search:
        raise InvalidRequest("stream: the beams of a search are known at its end; ask for all at once", param="stream")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs does not go with stream: true", param="prompt_logprobs")


def _shared(body: Sampling, vocab_size: int) -> dict[str, Any]:
    asked = {name: value for name in SHARED if (value := getattr(body, name)) is not None}
    fields = {**(BEAM_DEFAULTS if body.use_beam_search else {}), **asked}
    if "top_k" in fields:
        fields["top_k"] = min(fields["top_k"], vocab_size)
    if body.stop is not None:
        fields["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    for name in ("stop_token_ids", "allowed_token_ids"):
        if (tokens := getattr(body, name)) is not None:
            fields[name] = tuple(_token(token, vocab_size, name) for token in tokens)
    if body.bad_words is not None:
        fields["bad_words"] = tuple(body.bad_words)
    if body.logit_bias is not None:
        fields["logit_bias"] = {_token(t, vocab_size, "logit_bias"): b for t, b in body.logit_bias.items()}
    if (constraint := constraint_of(body)) is not None:
        fields["structured_outputs"] = constraint
    return fields


def _token(given: int | str, vocab_size: int, param: str) -> int:
    try:
        token = int(given)
    except ValueError:
        raise InvalidRequest(f"{param}: {given!r} is not a token id", param=param) from None
    if not 0 <= token < vocab_size:
        raise InvalidRequest(f"{param}: there is no token {token}; ids go from 0 to {vocab_size - 1}", param=param)
    return token


def _check_context(model: ModelInfo, num_prompt: int, max_tokens: int | None, *, params: tuple[str, str]) -> None:
    """The numbers that do not add up, in OpenAI's words, which some clients look for. `params`: prompt, max_tokens."""
    prompt, asked = params
    room = model.max_model_len - num_prompt
    start = f"{model.limit} However, "
    if room < 1:
        text = f"your {prompt} resulted in {num_prompt} tokens. Please reduce the length of the {prompt}."
        raise InvalidRequest(start + text, param=prompt, code="context_length_exceeded")
    if max_tokens is not None and max_tokens > room:
        text = (
            f"you requested {num_prompt + max_tokens} tokens ({num_prompt} in the {prompt}, {max_tokens} in the "
            f"completion). Please reduce the length of the {prompt}, or {asked} to at most {room}."
        )
        raise InvalidRequest(start + text, param=asked, code="context_length_exceeded")


def _most(fields: Mapping[str, Any], model: ModelInfo, num_prompt: int) -> int | None:
    """The max_tokens of a prompt: a default is cut to what the context still holds; one asked for has been checked."""
    room = model.max_model_len - num_prompt
    if fields.get("min_tokens", 0) > room:
        raise InvalidRequest(f"min_tokens: the context has room for {room} tokens", param="min_tokens")
    most: int | None = fields["max_tokens"]
    return None if most is None else min(most, room)
