"""A random Llama ready to be stepped: caches full of context, adapters in their slots, eager and captured passes.

What is timed is the engine's own: its packer, its passes, its runner with its sampler. Only the scheduler is absent.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from ...engine.graphs import Graphed, num_spare_blocks, recorder_for
from ...engine.inputs import Packer, RowState
from ...engine.kv.tensors import allocate
from ...engine.params import SamplingParams
from ...engine.passes import Eager, Pass
from ...engine.runner import Runner
from ...engine.sampler import Sampler
from ...engine.step import NewRow, Row, Step
from ...models.attention.base import choose
from .random_model import RandomAdapters, random_network
from .roofline import seconds_each
from .scale import Scale, Shape

BLOCK_SIZE = 16
MAX_MODEL_LEN = 4096
RANK = 16
PREFILLS = (1, 8)  # into how many prompts the prompt budget is cut; each of several has an adapter of its own
UNTIMED = 3  # steps ahead of the timed ones


@dataclass(frozen=True, slots=True)
class Rig:
    """One network and all that a step of it needs."""

    scale: Scale
    eager: Eager
    decoding: Pass  # captured where there are device graphs
    adapters: RandomAdapters

    @classmethod
    def build(cls, shape: Shape, scale: Scale) -> Rig:
        """Weights, adapters and caches, all of random numbers: zeros would run cooler and thus faster."""
        platform = scale.platform
        network = random_network(shape, platform, MAX_MODEL_LEN)
        adapters = RandomAdapters(network, max(scale.adapters), RANK, platform)
        backend = choose("auto", network.attention_specs, platform)
        prompts = max(n * _blocks(scale.prompt // n) for n in PREFILLS)
        num_blocks = max(max(scale.rows) * blocks_per_row(scale), prompts)
        spare = range(num_blocks, num_blocks + num_spare_blocks(BLOCK_SIZE))
        caches = allocate(network.attention_specs, spare.stop, BLOCK_SIZE, platform.device)
        for half in (half for cache in caches for half in (cache.k, cache.v)):
            half.normal_()
        packer = Packer(
            max_tokens=max(scale.prompt, *scale.rows),
            max_rows=max(*scale.rows, *PREFILLS),
            max_blocks=_blocks(MAX_MODEL_LEN),
            block_size=BLOCK_SIZE,
            device=platform.device,
        )
        eager = Eager(network, backend, caches, packer, adapters)
        graphed = Graphed(
            eager,
            recorder_for(platform, max(scale.rows)),
            max_model_len=MAX_MODEL_LEN,
            spare_blocks=spare,
            block_size=BLOCK_SIZE,
        )
        return cls(scale, eager, graphed, adapters)

    def decode_pass(self, num_rows: int, num_adapters: int, pass_: Pass) -> float:
        """Seconds of one pass in which every row decodes one token: inputs and network, nothing drawn."""
        states = [RowState(new) for new in self._contexts(num_rows, num_adapters)]
        rows = [(Row(state.id, self.scale.context - 1, 1, samples=True), state) for state in states]
        return seconds_each(lambda: pass_.run(rows), times=self.scale.steps, platform=self.scale.platform)

    def decode_step(self, num_rows: int, num_adapters: int) -> float:
        """Seconds of one whole step of the runner, greedy tokens drawn and back on the host; the median."""
        runner = Runner(self.decoding, Sampler(()), caches=self.eager.caches, adapters=self.adapters)
        new = self._contexts(num_rows, num_adapters)
        seconds = []
        for at in range(UNTIMED + self.scale.steps):
            rows = [Row(row.id, self.scale.context - 1 + at, 1, samples=True) for row in new]
            started = time.perf_counter()
            runner.run(Step(new=new if at == 0 else [], rows=rows))
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[UNTIMED:])

    def prefill(self, num_prompts: int, num_adapters: int) -> float:
        """Seconds of one pass over prompts that fill the prompt budget together."""
        length = self.scale.prompt // num_prompts
        per_prompt = _blocks(length)
        rows = []
        for at in range(num_prompts):
            blocks = tuple(range(at * per_prompt, (at + 1) * per_prompt))
            state = RowState(self._new(at, length, blocks, _slot(at, num_adapters)))
            rows.append((Row(state.id, 0, length, samples=True), state))
        return seconds_each(lambda: self.eager.run(rows), times=2, platform=self.scale.platform)

    def _contexts(self, num_rows: int, num_adapters: int) -> list[NewRow]:
        per_row = blocks_per_row(self.scale)
        return [
            self._new(at, self.scale.context, tuple(range(at * per_row, (at + 1) * per_row)), _slot(at, num_adapters))
            for at in range(num_rows)
        ]

    def _new(self, at: int, length: int, blocks: tuple[int, ...], slot: int) -> NewRow:
        drawn = torch.Generator().manual_seed(at)
        tokens = torch.randint(self.eager.network.spec.vocab_size, (length,), generator=drawn).tolist()
        params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        return NewRow(str(at), tokens, length, params, 0, slot, blocks)


def blocks_per_row(scale: Scale) -> int:
    """Blocks of a row that decodes all steps behind its context."""
    return _blocks(scale.context + UNTIMED + scale.steps)


def _slot(at: int, num_adapters: int) -> int:
    return 1 + at % num_adapters if num_adapters else 0


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)
