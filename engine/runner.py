"""Runner: what a step asks for, done in order. It owns the mirror of the requests and decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from ..lora.adapter import AdapterRef
from ..models.batch import LayerCache
from .inputs import RowState
from .kv.tensors import copy_blocks
from .passes import Pass
from .pooling import Pooler
from .sampler import Sampler
from .step import NOTHING, NewRow, Step, StepResult


class AdapterLoader(Protocol):
    """Who puts adapters into slots."""

    def apply(self, loads: Sequence[tuple[int, AdapterRef]]) -> None:
        """Make each slot hold its adapter. Called before every pass, as older loads may have to move."""


class Runner:
    """Turns a Step into a StepResult."""

    def __init__(self, pass_: Pass, sampler: Sampler, *, caches: Sequence[LayerCache], adapters: AdapterLoader) -> None:
        self._pass = pass_
        self._sampler = sampler
        self._caches = caches
        self._adapters = adapters
        self._pooler = Pooler()
        self._rows: dict[str, RowState] = {}

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Do all that `step` says; an answer for each of its rows. Raises only when the whole pass failed."""
        self._forget(step.gone)
        self._meet(step.new)
        self._follow(step)
        self._adapters.apply(step.loads)
        if step.copies:
            copy_blocks(self._caches, step.copies)
        if not step.rows:
            return {}
        passed = self._pass.run([(row, self._rows[row.id]) for row in step.rows])
        answers = self._sampler.sample(passed.logits, passed.wanted)
        if passed.hidden is not None:
            answers |= self._pooler.pool(passed.hidden, passed.pooled)
        for request_id, answer in answers.items():
            self._rows[request_id].took(answer.token_ids)
        return {row.id: answers.get(row.id, NOTHING) for row in step.rows}

    def _forget(self, gone: Iterable[str]) -> None:
        for request_id in gone:
            self._rows.pop(request_id, None)
            self._sampler.forget(request_id)
            self._pooler.forget(request_id)

    def _meet(self, new: Iterable[NewRow]) -> None:
        for row in new:
            self._rows[row.id] = RowState(row)
            self._sampler.admit(row)

    def _follow(self, step: Step) -> None:
        """Take over how blocks changed since the last step."""
        for row in step.rows:
            if row.new_blocks:
                self._rows[row.id].grew(row.new_blocks)
        for request_id, (at, block) in step.moved.items():
            self._rows[request_id].blocks[at] = block
