"""One request inside the engine, and the chunks that come out of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..lora.adapter import AdapterRef
from .params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor  # a process that only answers HTTP has none

# The priority of work that nobody waits for, and of all above it: it gets what room and computing the rest leaves.
BACKGROUND = 1 << 30
Vector = NDArray[np.float32]


class Status(enum.Enum):
    """Where a request stands. A preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: the token itself, its rank (1 = most likely), and the most likely ones."""

    token_id: int
    logprob: float
    rank: int
    top: Mapping[int, float]  # token id -> log-probability, most likely first


@dataclass(slots=True, eq=False)
class Request:
    """The state of one sequence. The scheduler owns it; nobody else writes it.

    There is no prefill phase: `num_computed` catches up with `num_tokens` (prompt, output and drafts).
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    adapter: AdapterRef | None = None
    priority: int = 0  # lower runs earlier, as in vLLM
    salt: str = ""  # requests with different ones share no cached prefix
    owner: str = ""  # whoever it is for: those who wait at one priority get equal shares
    index: int = 0  # which of the `n` choices this is
    parent: str | None = None  # id of the sibling whose prompt blocks this one shares
    arrival: int = 0  # order of arrival, set by the scheduler
    status: Status = Status.WAITING
    output: list[int] = field(default_factory=list)
    num_computed: int = 0
    slot: int = 0  # of its adapter, while it runs
    num_cached: int = 0  # prompt tokens found in the prefix cache when first scheduled
    num_preemptions: int = 0
    draft: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)  # names of its full blocks' content, as far as asked for
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)  # gathered until the first chunk
    prompt_logits: list[Tensor] = field(default_factory=list)  # of each row so far, gathered likewise
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def is_background(self) -> bool:
        """Whether nobody waits for it."""
        return self.priority >= BACKGROUND

    @property
    def client_id(self) -> str:
        """The id under which a client knows it and its siblings."""
        return self.parent or self.id

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output."""
        return len(self.prompt) + len(self.output)

    @property
    def num_missing(self) -> int:
        """Tokens whose KV is still to be computed; 1 while it decodes."""
        return len(self.prompt) + len(self.output) - self.num_computed

    @property
    def scores_prompt(self) -> bool:
        """Whether its prompt must be computed for scores not yet given out; once for all choices."""
        return self.params.scores_prompt and not self.output and self.index == 0

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether something is wanted at every position of its prompt, also where KV is cached."""
        return self.scores_prompt or self.params.pooling == "mean"

    def token_ids(self) -> list[int]:
        """Prompt and output together."""
        return self.prompt + self.output

    def tokens_between(self, start: int, end: int) -> list[int]:
        """Tokens start .. end of prompt and output, without copying the rest."""
        border = len(self.prompt)
        if end <= border:
            return self.prompt[start:end]
        return self.prompt[start:] + self.output[max(start - border, 0) : end - border]

    def choices(self) -> list[Request]:
        """Itself and, for n > 1 or several beams, the siblings that share its prompt."""
        of_all = self.prompt, self.params, self.adapter, self.priority, self.salt, self.owner
        others = range(1, self.params.num_rows)
        return [self, *(Request(f"{self.id}#{at}", *of_all, index=at, parent=self.id) for at in others)]


@dataclass(slots=True)
class Chunk:
    """News of one choice of a request, as a client receives it.

    `text` is what became certain since the last chunk, `token_ids` the tokens taken since then; they need not
    correspond one to one. `finish_reason` is None until the last chunk: stop, length, abort or error.
    """

    request_id: str
    index: int
    token_ids: list[int]
    text: str = ""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # first chunk only; None at position 0
    prompt_logits: list[Tensor] | None = None  # first chunk only: pieces of [n - 1, vocab], what predicts tokens 1 to n
    embedding: Vector | None = None  # of a prompt that is to be pooled: all that comes of it
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0  # output tokens of this choice so far
    queued: float = 0.0  # seconds from the request's arrival to its first step
    error: Exception | None = None  # with finish_reason "error": why this request, alone, failed
