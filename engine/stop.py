"""When a request ends by its tokens: what it was asked to stop at, or a length. Stop strings are the detokenizer's."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from .params import SamplingParams
from .request import Request


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request is over, in the words a client reads."""

    reason: str  # stop, length, abort or error
    stop_reason: int | str | None = None  # the stop token or string, when it was one that the client named


END_OF_SEQUENCE = Ending("stop")
LENGTH = Ending("length")


def ending(request: Request, *, eos_token_ids: Set[int], max_model_len: int) -> Ending | None:
    """How the newest output token ends `request`; None when it goes on."""
    is_full = request.num_tokens >= max_model_len
    return ending_of(request.params, request.output[-1], len(request.output), eos_token_ids, is_full=is_full)


def ending_of(
    params: SamplingParams, token: int, num_output: int, eos_token_ids: Set[int], *, is_full: bool
) -> Ending | None:
    """How `token`, the last of `num_output`, ends a text; `is_full`: there is no room for another."""
    asked = params.structured_outputs
    constrained = asked is not None and asked.spans is None  # an end is drawn only where there may, or must, be one
    if constrained or num_output >= params.min_tokens:
        if token in eos_token_ids and (constrained or not params.ignore_eos):
            return END_OF_SEQUENCE
        if token in params.stop_token_ids:
            return Ending("stop", token)
    return LENGTH if is_full or num_output == params.max_tokens else None
