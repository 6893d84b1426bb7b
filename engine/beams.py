"""Beam search: which of the likeliest continuations of several texts go on, and which are the best that have ended.

The rules are those of transformers' `generate(num_beams=...)`, for the same answers: a text may end only among the best
`width` candidates of its step, an ended one scores its log-probability divided by its length to the power of
`length_penalty`, and the search ends when no text that goes on could beat the worst of the best `width` that have
ended. Knows no rows and no blocks: the scheduler's side of it is branches.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from .detokenizer import Detokenizer
from .params import SamplingParams
from .request import TokenLogprobs
from .stop import Ending

Ends = Callable[[int, int], Ending | None]  # by the newest token, and how many there are


@dataclass(frozen=True, slots=True)
class Beam:
    """A text so far. `parent` is its place among the beams of the step before."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    score: float  # sum of its log-probabilities
    text: Detokenizer
    parent: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A text that is complete. `score` has the length penalty in it."""

    beam: Beam
    score: float
    ending: Ending


class BeamSearch:
    """One search. `running` are the beams that go on, the best first; none: it is over, and `ended` is its result."""

    def __init__(self, params: SamplingParams, text: Detokenizer, ends: Ends, *, most_tokens: int) -> None:
        """`text` spells what follows the prompt; `most_tokens` is the longest that an answer can get."""
        self.running = [Beam((), (), 0.0, text)]
        self.ended: list[Ended] = []
        self._params = params
        self._ends = ends
        self._most = most_tokens

    def advance(self, found: Sequence[TokenLogprobs]) -> None:
        """Go on by one token: `found` has the likeliest next tokens of each beam, in their order."""
        width, running = self._params.num_beams, list[Beam]()
        for place, candidate in enumerate(self._candidates(found)):
            if place >= width and len(running) == width:
                break
            beam, ending = self._followed(candidate, found)
            if ending is None and len(running) < width:
                running.append(beam)
            elif ending is not None and place < width:
                score = beam.score / len(beam.tokens) ** self._params.length_penalty
                self.ended.append(Ended(beam, score, ending))
        self.ended = sorted(self.ended, key=lambda one: -one.score)[:width]
        self.running = [] if self._is_over(running) else running

    def _candidates(self, found: Sequence[TokenLogprobs]) -> list[tuple[float, int, int]]:
        """Score, parent and place among the parent's likeliest tokens; the best first."""
        scored = (
            (-self.running[parent].score - logprob, parent, rank)
            for parent, told in enumerate(found)
            for rank, logprob in enumerate(told.top.values())
        )
        return [(-cost, parent, rank) for cost, parent, rank in sorted(scored)]

    def _followed(
        self, candidate: tuple[float, int, int], found: Sequence[TokenLogprobs]
    ) -> tuple[Beam, Ending | None]:
        score, at, rank = candidate
        parent, top = self.running[at], found[at].top
        token, logprob = next(islice(top.items(), rank, None))
        shown = dict(islice(top.items(), self._params.logprobs or 0))
        told = TokenLogprobs(token, logprob, rank + 1, shown)
        text = parent.text
        if self._params.stop:
            text = text.fork()
            text.push([token])
        beam = Beam((*parent.tokens, token), (*parent.logprobs, told), score, text, at)
        return beam, self._ending(beam)

    def _ending(self, beam: Beam) -> Ending | None:
        ending = self._ends(beam.tokens[-1], len(beam.tokens))
        if beam.text.stop is not None and (ending is None or ending.reason == "length"):
            return Ending("stop", beam.text.stop)
        return ending

    def _is_over(self, running: Sequence[Beam]) -> bool:
        params = self._params
        if not running:
            return True
        if len(self.ended) < params.num_beams:
            return False
        if params.early_stopping is True:
            return True
        optimistic = params.early_stopping == "never" and params.length_penalty > 0
        length = self._most if optimistic else len(running[0].tokens)
        return bool(running[0].score / length**params.length_penalty <= self.ended[-1].score)
