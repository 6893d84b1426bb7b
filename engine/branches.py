"""Branches: the rows of beam searches. The choices of a request are its beams, and after each token they part anew.

A beam whose row has told its likeliest tokens has nothing to compute until all beams of its request have: it keeps its
place and its blocks, or, where others need those, is parked and computed again. Then each beam goes on from one of
those before it, and shares its blocks, copied where they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .beams import BeamSearch
from .detokenizer import Detokenizer
from .holdings import Heir, Holdings
from .params import SamplingParams
from .request import Request, TokenLogprobs
from .step import Sampled
from .stop import Ending, ending_of

Speller = Callable[[SamplingParams, Sequence[int]], Detokenizer]  # of what follows a prompt
Done = list[tuple[Request, list[TokenLogprobs] | None]]  # a choice that has ended, and what is to be told of its tokens


@dataclass(slots=True)
class _Group:
    """One request: its search, all its rows, and which of them are the beams, in the search's order."""

    search: BeamSearch
    members: list[Request]
    beams: list[Request]
    told: dict[str, Sampled] = field(default_factory=dict)


class Branches:
    """Owner of the searches that have not ended."""

    def __init__(
        self, holdings: Holdings, spell: Speller, *, eos_token_ids: frozenset[int], max_model_len: int
    ) -> None:
        self._holdings = holdings
        self._spell = spell
        self._eos = eos_token_ids
        self._max_len = max_model_len
        self._groups: dict[str, _Group] = {}

    def enter(self, choices: list[Request]) -> None:
        """A new request; one that is sampled is none of ours."""
        first, params = choices[0], choices[0].params
        if not params.use_beam_search:
            return
        num_prompt = len(first.prompt)

        def ends(token: int, num_output: int) -> Ending | None:
            return ending_of(params, token, num_output, self._eos, is_full=num_prompt + num_output >= self._max_len)

        room = self._max_len - num_prompt
        most = room if params.max_tokens is None else min(params.max_tokens, room)
        search = BeamSearch(params, self._spell(params, first.prompt), ends, most_tokens=most)
        self._groups[first.id] = _Group(search, list(choices), [first])

    def siblings(self, request: Request) -> list[Request] | None:
        """All rows of its search; None for a request that is sampled."""
        group = self._groups.get(request.client_id)
        return None if group is None else group.members

    def leave(self, request_id: str) -> None:
        """It was ended from outside."""
        self._groups.pop(request_id, None)

    def take(self, request: Request, sampled: Sampled) -> Done:
        """What a beam's row brought; the choices, once the search is over."""
        group = self._groups[request.client_id]
        group.told[request.id] = sampled
        if len(group.told) < len(group.beams):
            return []
        found = [told.logprobs[0] for beam in group.beams if (told := group.told[beam.id]).logprobs]
        group.search.advance(found)
        if not group.search.running:
            return self._finish(group)
        self._part(group)
        return []

    def _part(self, group: _Group) -> None:
        """Each new beam gets a row: its parent's, if that is still to be had."""
        before, spare = group.beams, [member for member in group.members if member not in group.beams]
        taken: dict[int, Request] = {}  # by place among the new beams
        heirs = [before[beam.parent] for beam in group.search.running]
        for at, parent in enumerate(heirs):
            if parent not in taken.values():
                taken[at] = parent
        spare += [beam for beam in before if beam not in taken.values()]
        group.beams = [taken[at] if at in taken else spare.pop(0) for at in range(len(heirs))]
        self._holdings.branch(
            [
                Heir(child, parent, beam.tokens[-1], drawn=_drawn(group, parent) if child is parent else None)
                for child, parent, beam in zip(group.beams, heirs, group.search.running, strict=True)
            ],
            spare,
        )
        group.told.clear()

    def _finish(self, group: _Group) -> Done:
        """The best texts become the choices; all rows end."""
        best, done = group.search.ended, Done()
        self.leave(group.members[0].id)
        for member in group.members:
            shown = best[min(member.index, len(best) - 1)]
            member.output, member.num_cached = list(shown.beam.tokens), group.members[0].num_cached
            if member.index < member.params.n:
                self._holdings.end(member, shown.ending)
                asked = member.params.logprobs is not None
                done.append((member, list(shown.beam.logprobs) if asked else None))
            else:
                self._holdings.drop(member)
        return done


def _drawn(group: _Group, beam: Request) -> int:
    """The token that the device went on by."""
    return group.told[beam.id].token_ids[0]
