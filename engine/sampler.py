"""Logits to tokens, for all rows of a step at once; and their log-probabilities where asked for.

It owns what sampling remembers of each request: noise and rules. A row whose logits are broken fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ArilError, InvalidRequest
from ..kernels.ops.sampling import greatest
from .draw import Noise, draw
from .grammar.constraint import Constraint
from .grammar.constraints import Constraints
from .logits import Ints, RuledRow, apply_rules
from .params import SamplingParams
from .request import TokenLogprobs
from .step import NOTHING, NewRow, Sampled, StepResult

NOT_FINITE = "output_not_finite"  # code of a request's error
PROMPT_CHUNK = 64  # prompt positions whose log-probabilities are worked out at a time; bounds the memory


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one row wants of the logits of this step."""

    id: str
    sample_at: int | None  # row of the logits to draw the next token from
    prompt_at: int = 0  # row of the logits that predicts the first of `prompt_tokens`
    prompt_tokens: Ints | None = None  # prompt tokens whose log-probabilities are wanted
    from_start: bool = False  # whether the row began with the first token, which nothing predicts


@dataclass(slots=True)
class _Voice:
    """One request as the sampler knows it."""

    params: SamplingParams
    noise: Noise
    rules: RuledRow
    position: int  # of the next token in the sequence

    def took(self, token: int) -> Constraint | None:
        """One more token; its constraint, where that has a next mask to fill."""
        self.position += 1
        self.rules.took(token)
        constraint = self.rules.constraint
        return constraint if constraint is not None and constraint.took(token) else None


class Sampler:
    """Draws the next tokens. `admit` a request before its first row, `forget` it after the last."""

    def __init__(self, eos_token_ids: Sequence[int], constraints: Constraints | None = None) -> None:
        """Without `constraints` no request may have one."""
        self._eos = tuple(eos_token_ids)
        self._constraints = constraints
        self._voices: dict[str, _Voice] = {}

    def admit(self, new: NewRow) -> None:
        """Meet a request, perhaps again after a preemption."""
        prompt, output = new.token_ids[: new.num_prompt], new.token_ids[new.num_prompt :]
        rules = RuledRow.of(new.params, prompt, output, self._eos)
        if (asked := new.params.structured_outputs) is not None:
            assert self._constraints is not None, "the engine has made the grammar ready"
            rules.constraint = self._constraints.of(
                asked, new.params.thoughts, ends=rules.enders.tolist(), output=output
            )
        noise = Noise(new.params.seed or 0, new.index)
        self._voices[new.id] = _Voice(new.params, noise, rules, len(new.token_ids))

    def forget(self, request_id: str) -> None:
        """Drop all that is known of a request."""
        self._voices.pop(request_id, None)

    def sample(self, logits: Tensor, wanted: Sequence[Wanted]) -> StepResult:
        """The answer of every row of `wanted`. `logits` [S, vocab] float32 are used up."""
        answers = {w.id: self._scores(logits, w) for w in wanted}
        drawing = [(w.sample_at, w.id, self._voices[w.id]) for w in wanted if w.sample_at is not None]
        if not drawing:
            return answers
        rows = torch.tensor([at for at, _, _ in drawing], device=logits.device)
        chosen = logits if len(drawing) == len(logits) else logits[rows]
        voices = [voice for _, _, voice in drawing]
        errors, tokens, logprobs = self._draw(chosen, voices)
        held: list[Constraint] = []
        for at, (_, id_, voice) in enumerate(drawing):
            if at in errors:
                answers[id_] = Sampled([], error=errors[at])
                continue
            if constraint := voice.took(tokens[at]):
                held.append(constraint)
            scores = answers[id_]
            answers[id_] = Sampled([tokens[at]], logprobs.get(at), scores.prompt_logprobs, scores.prompt_logits)
        if held and self._constraints is not None:
            self._constraints.fill(held)
        return answers

    def _draw(
        self, logits: Tensor, voices: Sequence[_Voice]
    ) -> tuple[dict[int, ArilError], list[int], dict[int, list[TokenLogprobs]]]:
        """What is wrong with which row, each row's token, and the log-probabilities where asked for, by row."""
        best = greatest(logits)  # a NaN anywhere makes the maximum NaN
        errors: dict[int, ArilError] = {
            at: ArilError("the model's output for this request is not finite", code=NOT_FINITE)
            for at in _flattened(logits, best.values)
        }
        asking = [at for at, voice in enumerate(voices) if voice.params.num_likely is not None]
        raw = torch.log_softmax(_rows(logits, asking), dim=-1) if asking else None
        ruled = [at for at, voice in enumerate(voices) if voice.rules.has_rules]
        if ruled:
            apply_rules(logits, [(at, voices[at].rules) for at in ruled])
            best = greatest(logits)
            stuck = {at: _no_token_left(voices[at]) for at in _flattened(logits, best.values)}
            errors = {**stuck, **_lost(voices), **errors}
        tokens = best.places
        drawn = [at for at, voice in enumerate(voices) if not voice.params.greedy]
        if drawn:
            mine = [voices[at] for at in drawn]
            uniforms = [voice.noise.at(voice.position) for voice in mine]
            tokens[drawn] = draw(logits, drawn, [voice.params for voice in mine], uniforms)
        logprobs: dict[int, list[TokenLogprobs]] = {}
        if raw is not None:
            counts = [voices[at].params.num_likely or 0 for at in asking]
            found = token_logprobs(raw, tokens[asking], counts)
            logprobs = {at: [one] for at, one in zip(asking, found, strict=True)}
        return errors, tokens.tolist(), logprobs

    def _scores(self, logits: Tensor, row: Wanted) -> Sampled:
        """An answer without a token: what the row's prompt was asked for."""
        if row.prompt_tokens is None:
            return NOTHING
        params = self._voices[row.id].params
        end = row.prompt_at + len(row.prompt_tokens)
        return Sampled(
            [],
            prompt_logprobs=None if params.prompt_logprobs is None else self._prompt_logprobs(logits, row),
            prompt_logits=logits[row.prompt_at : end].to("cpu", copy=True) if params.prompt_logits else None,
        )

    def _prompt_logprobs(self, logits: Tensor, row: Wanted) -> list[TokenLogprobs | None]:
        """For the prompt tokens that this row computed; None for the first, which nothing predicts."""
        assert row.prompt_tokens is not None
        count = self._voices[row.id].params.prompt_logprobs or 0
        found: list[TokenLogprobs | None] = [None] if row.from_start else []
        for at in range(0, len(row.prompt_tokens), PROMPT_CHUNK):
            tokens = row.prompt_tokens[at : at + PROMPT_CHUNK]
            first = row.prompt_at + at
            raw = torch.log_softmax(logits[first : first + len(tokens)], dim=-1)
            found += token_logprobs(raw, torch.from_numpy(tokens).to(raw.device), [count] * len(tokens))
        return found


def token_logprobs(raw: Tensor, tokens: Tensor, counts: Sequence[int]) -> list[TokenLogprobs]:
    """For each row of log-probabilities `raw` [n, vocab]: its token's own, its rank, and the `counts[i]` highest."""
    own = raw.gather(-1, tokens[:, None])  # [n, 1]
    rank = (raw > own).sum(-1, keepdim=True) + 1
    top = raw.topk(min(max(counts), raw.shape[1]), dim=-1)
    best = zip(counts, top.indices.tolist(), top.values.tolist(), strict=True)
    tops = [dict(zip(ids[:count], values[:count], strict=True)) for count, ids, values in best]
    columns = zip(tokens.tolist(), own[:, 0].tolist(), rank[:, 0].tolist(), tops, strict=True)
    return [TokenLogprobs(*column) for column in columns]


def _no_token_left(voice: _Voice) -> ArilError:
    params, constraint = voice.params, voice.rules.constraint
    if params.structured_outputs is not None and constraint is not None and constraint.bits() is not None:
        return params.structured_outputs.refused("no token that goes on or ends the text is left by the other fields")
    limits = (
        ("allowed_token_ids", params.allowed_token_ids is not None),
        ("bad_words", bool(params.bad_words_ids)),
        ("min_tokens", True),  # with stop_token_ids
    )
    param = next(name for name, is_asked in limits if is_asked)
    return InvalidRequest(f"{param}: no token is left to go on with, beside the other fields", param=param)


def _lost(voices: Sequence[_Voice]) -> dict[int, ArilError]:
    """The rows that their constraint cannot be followed for."""
    each = ((at, voice.rules.constraint) for at, voice in enumerate(voices))
    return {at: found.error for at, found in each if found is not None and found.error is not None}


def _flattened(logits: Tensor, peak: Tensor) -> list[int]:
    """The rows without a finite maximum; they become level, so that the others can be drawn as always."""
    finite = peak.isfinite()
    if bool(finite.all()):
        return []
    logits[~finite] = 0.0
    return [at for at, sound in enumerate(finite.tolist()) if not sound]


def _rows(logits: Tensor, rows: Sequence[int]) -> Tensor:
    return logits if len(rows) == len(logits) else logits[torch.from_numpy(np.asarray(rows)).to(logits.device)]
