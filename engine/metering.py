"""What the serving side tells of each request, before and after: the seam for quotas, usage and shadows.

The faces know only this; whoever keeps the books implements it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from ..core.callers import Caller
from ..lora.catalog import Resolution
from .params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request as it is about to run: who asked, whom, and what."""

    caller: Caller
    resolution: Resolution
    prompts: Sequence[Sequence[int]]  # token ids
    params: Sequence[SamplingParams]  # of each prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a request ended. `error` is a code, None when it was answered, and `fault` whether the server or the adapter
    is to blame for it, not the caller; `refused`: for what the caller asked, before anything had come of it; `outputs`:
    token ids by prompt and choice.

    `gaps` are the seconds between the tokens of a choice, as the client could have them.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token_seconds: float | None = None
    gaps: Sequence[float] = ()
    seconds: float = 0.0
    error: str | None = None
    fault: bool = False
    refused: bool = False
    outputs: Mapping[tuple[int, int], Sequence[int]] | None = None


class Permit(Protocol):
    """One request that was let in. It must be ended, once."""

    @property
    def headers(self) -> Mapping[str, str]:
        """OpenAI's rate-limit headers, where there are limits."""

    def end(self, outcome: Outcome) -> None:
        """Take down what the request came to; never waits."""


class Meter(Protocol):
    """Whoever counts and limits requests."""

    def admit(self, work: Work) -> Permit:
        """Let `work` in; raises RateLimited. Never waits."""


class Observer(Protocol):
    """Whoever learns from how requests end: metrics, canaries, shadows."""

    def ended(self, work: Work, outcome: Outcome) -> None:
        """Called on the event loop; never waits and never raises."""


class Free:
    """Lets everything in and counts nothing: a meter and its permits."""

    headers: Mapping[str, str] = MappingProxyType({})

    def admit(self, work: Work) -> Free:
        return self

    def end(self, outcome: Outcome) -> None:
        pass
