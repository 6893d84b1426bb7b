"""Networks and adapters out of random numbers, made where they are used: nothing is read from a file."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LlamaConfig

from ...core.platform import Platform
from ...kernels.ops.lora import DeltaRows
from ...lora.adapter import AdapterRef
from ...lora.delta import Delta, Tables
from ...models.base import Build, Decoder, ModelSpec, families
from ...models.parallel import OneRank
from ...quant.formats.none import Plain
from .scale import Shape

DTYPE = torch.bfloat16
SPREAD = 0.02  # standard deviation of the weights, as an untrained Llama has it
MAX_SLOTS = 256  # the engine's default: it sizes the grids of the LoRA kernels
MAX_RANK = 64  # what the engine rounds smaller ranks up to


def random_network(shape: Shape, platform: Platform, num_positions: int) -> Decoder:
    """A Llama of `shape` in bfloat16."""
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=num_positions,
        tie_word_embeddings=shape.tied,
    )
    spec = ModelSpec("LlamaForCausalLM", shape.hidden, shape.layers, shape.vocab, num_positions, DTYPE, (), config)
    build = Build(DTYPE, platform.device, Plain(), OneRank(), num_positions)
    network = families["llama"].build(spec, build)
    for want in build.wanted.values():
        weight = torch.randn(want.shape, dtype=DTYPE, device=platform.device).mul_(SPREAD)
        want.put(weight if weight.dim() > 1 else weight.add_(1.0))
    return network


class RandomAdapters:
    """`num` adapters of one rank on every Linear of `network`, in the slots 1 .. num."""

    def __init__(self, network: Decoder, num: int, rank: int, platform: Platform) -> None:
        linears = list(network.linears.values())
        widths = [(linear.in_features, part.size) for linear in linears for part in linear.parts]
        size = rank * sum(k + n for k, n in widths)
        self._device = platform.device
        self.bytes_each = size * DTYPE.itemsize
        arena = torch.randn(num * size, dtype=DTYPE, device=self._device).mul_(SPREAD)
        tables = Tables([len(linear.parts) for linear in linears], MAX_SLOTS + 1, self._device)
        for slot in range(1, num + 1):
            tables.load(slot, _entries(widths, rank, (slot - 1) * size))
        for linear, table in zip(linears, tables.views(), strict=True):
            linear.delta = Delta(arena, table, tuple((part.start, part.size) for part in linear.parts))

    def rows(self, slots: Sequence[int]) -> DeltaRows | None:
        """As the engine's own manager of adapters says it."""
        return DeltaRows.build(slots, self._device, MAX_SLOTS, max_rank=MAX_RANK) if any(slots) else None

    def apply(self, loads: Sequence[tuple[int, AdapterRef]]) -> None:
        """All are loaded."""
        assert not loads


def _entries(widths: Sequence[tuple[int, int]], rank: int, at: int) -> torch.Tensor:
    """[parts, 3] int64: where A and B of each part begin, and their rank. Widths are multiples of the alignment."""
    entries = []
    for k, n in widths:
        entries.append((at, at + rank * k, rank))
        at += rank * (k + n)
    return torch.tensor(entries, dtype=torch.int64)
