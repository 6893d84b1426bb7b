"""Texts of the base and of adapters through one pass of the network, without a scheduler: logits at every position."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...core.platform import Platform
from ...engine.graphs import DeviceGraphs, Graphed, num_spare_blocks
from ...engine.inputs import Packer, RowState
from ...engine.kv.tensors import allocate
from ...engine.params import SamplingParams
from ...engine.passes import Eager
from ...engine.step import NewRow, Row
from ...lora.adapter import AdapterRef
from ...lora.manager import LoraManager
from ...lora.store import content_digest
from ...models.attention.base import choose
from ...models.base import Decoder
from ...models.loader import load_model
from ...models.source import locate

BLOCK_SIZE = 16
NUM_BLOCKS = 1024
MAX_TOKENS = 8192
MAX_ROWS = 64

Texts = Sequence[tuple[str | None, Sequence[int]]]  # adapter, tokens


@dataclass(frozen=True, slots=True)
class MixedRows:
    """One loaded model, its adapters in their slots."""

    eager: Eager
    slots: Mapping[str | None, int]

    @classmethod
    def load(cls, model: Path | str, adapters: Mapping[str, Path], dtype: torch.dtype, platform: Platform) -> MixedRows:
        """From the files that the reference reads too."""
        network = load_model(locate(str(model)), dtype=dtype, device=platform.device)
        refs = {name: AdapterRef(name, 1, content_digest(folder)) for name, folder in adapters.items()}
        folders = {ref.digest: adapters[name] for name, ref in refs.items()}
        manager = _manager(network, lambda ref: folders[ref.digest], platform)
        slots: dict[str | None, int] = {None: 0}
        slots |= {ref.name: _slot(manager, ref) for ref in refs.values()}
        manager.apply(manager.take_loads())
        spare = num_spare_blocks(BLOCK_SIZE)
        packer = Packer(
            max_tokens=MAX_TOKENS,
            max_rows=MAX_ROWS,
            max_blocks=NUM_BLOCKS // 8,
            block_size=BLOCK_SIZE,
            device=platform.device,
        )
        caches = allocate(network.attention_specs, NUM_BLOCKS + spare, BLOCK_SIZE, platform.device)
        backend = choose("auto", network.attention_specs, platform)
        return cls(Eager(network, backend, caches, packer, manager), slots)

    @torch.inference_mode()
    def all_logits(self, texts: Texts) -> list[Tensor]:
        """[len(tokens), vocab] of each text; all texts are one batch."""
        inputs = self.eager.packer.pack([(Row(s.id, 0, s.num_tokens, samples=True), s) for s in self._states(texts)])
        batch = self.eager.batch(inputs, self.eager.adapters.rows(inputs.slots.tolist()))
        everywhere = torch.arange(len(inputs.tokens), device=inputs.tokens.device)
        logits = self.eager.network.forward(replace(batch, sample_at=everywhere))
        return list(torch.split(logits, [len(tokens) for _, tokens in texts]))

    @torch.inference_mode()
    def replay_error(self, texts: Texts) -> float:
        """How far captured steps stand from eager ones: the last token of each text, its adapter, then another one."""
        spare = range(NUM_BLOCKS, NUM_BLOCKS + num_spare_blocks(BLOCK_SIZE))
        graphed = Graphed(
            self.eager,
            DeviceGraphs(MAX_ROWS),
            max_model_len=NUM_BLOCKS // 8 * BLOCK_SIZE,
            spare_blocks=spare,
            block_size=BLOCK_SIZE,
        )
        adapters = [adapter for adapter, _ in texts]
        error = 0.0
        for turn in (0, 1, 2):
            mixed = [*adapters[turn:], *adapters[:turn]]
            states = self._states([(adapter, tokens) for adapter, (_, tokens) in zip(mixed, texts, strict=True)])
            self.eager.run([(Row(s.id, 0, s.num_tokens - 1), s) for s in states])
            last = [(Row(s.id, s.num_tokens - 1, 1, samples=True), s) for s in states]
            plain = self.eager.run(last).logits.clone()
            error = max(error, float((graphed.run(last).logits - plain).abs().max()))
        return error

    def _states(self, texts: Texts) -> list[RowState]:
        states, block = [], 0
        for at, (adapter, tokens) in enumerate(texts):
            blocks = tuple(range(block, block + -(-len(tokens) // BLOCK_SIZE)))
            block += len(blocks)
            new = NewRow(str(at), list(tokens), len(tokens), SamplingParams(), 0, self.slots[adapter], blocks)
            states.append(RowState(new))
        assert block <= NUM_BLOCKS, f"{block} blocks of texts, room for {NUM_BLOCKS}"
        return states


def _manager(network: Decoder, resolve: Callable[[AdapterRef], Path], platform: Platform) -> LoraManager:
    return LoraManager(
        resolve,
        network.linears,
        arena_bytes=64 * 1024**2,
        max_slots=8,
        cache_bytes=256 * 1024**2,
        dtype=network.spec.dtype,
        device=platform.device,
    )


def _slot(manager: LoraManager, ref: AdapterRef) -> int:
    """The slot of `ref` once its files have been read."""
    ended = threading.Event()
    manager.on_ready(ended.set)
    manager.prefetch(ref)
    while not manager.is_ready(ref):
        ended.wait()
        ended.clear()
    slot = manager.acquire(ref)
    assert slot is not None, f"no room for {ref.name}"
    return slot
