"""The scheduler's word to the runner, and the runner's answer: plain data that can be pickled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..lora.adapter import AdapterRef
from .params import SamplingParams
from .request import Request, TokenLogprobs, Vector

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request that the runner has not met, or meets again after a preemption."""

    id: str
    token_ids: list[int]  # prompt and, after a preemption, the output so far
    num_prompt: int
    params: SamplingParams
    index: int  # which of the n choices
    slot: int  # adapter slot; 0 = no adapter
    blocks: tuple[int, ...]  # all cache blocks held, those of this step included

    @classmethod
    def of(cls, request: Request, blocks: tuple[int, ...]) -> NewRow:
        """A running request as it stands."""
        return cls(
            id=request.id,
            token_ids=request.token_ids(),
            num_prompt=len(request.prompt),
            params=request.params,
            index=request.index,
            slot=request.slot,
            blocks=blocks,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """What one request does in one step: compute tokens start .. start + length."""

    id: str
    start: int
    length: int
    new_blocks: tuple[int, ...] = ()  # appended to the blocks that the runner knows
    samples: bool = False  # whether a next token is drawn after the row's last token


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over all scheduled rows.

    The runner forgets `gone` before it meets `new` (an id may be in both), makes all `copies` before the pass writes
    (no block is both read and written by them), and takes the blocks of `new` as they are: `new_blocks` and `moved`
    speak of the others. A step without rows still has its `gone` and `loads` to do.
    """

    new: list[NewRow] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)  # requests to forget: finished, aborted or preempted
    loads: list[tuple[int, AdapterRef]] = field(default_factory=list)  # adapters to put into slots before the pass
    copies: list[tuple[int, int]] = field(default_factory=list)  # copy on write: from, to
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)  # id -> (index in its blocks, new block id)


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one row brought back."""

    token_ids: list[int]  # drawn tokens; empty for a row that does not sample
    logprobs: list[TokenLogprobs] | None = None  # one for each of token_ids, when asked for
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # for the prompt tokens this row computed, when asked for
    prompt_logits: Tensor | None = None  # [n, vocab] float32 on the host, for the same, when asked for
    embedding: Vector | None = None  # of a prompt that is to be pooled, with its last token
    error: Exception | None = None  # this row alone failed


NOTHING = Sampled([])  # of a row that neither samples nor scores

StepResult = dict[str, Sampled]  # by request id
