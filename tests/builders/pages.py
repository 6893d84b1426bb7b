"""Paged memory for a bare network, without an engine: rows of tokens in, logits of every token out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from aril.core.platform import detect
from aril.models.attention.base import choose
from aril.models.base import Decoder
from aril.models.batch import ForwardBatch, LayerCache, Ragged
from torch import Tensor

BLOCK = 16


class Pages:
    """The cache of one decoder. Rows take scattered blocks as they grow."""

    def __init__(self, decoder: Decoder, num_blocks: int = 128, seed: int = 0) -> None:
        self.decoder = decoder
        self.backend = choose("auto", decoder.attention_specs, detect("cpu"))
        self.caches = [
            LayerCache(*(torch.randn(2, num_blocks, BLOCK, s.kv_heads, s.head_dim).to(s.cache_dtype)))
            for s in decoder.attention_specs
        ]
        self._free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()
        self._blocks: dict[str, list[int]] = {}
        self._lengths: dict[str, int] = {}

    def run(self, rows: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """One step: append `rows[id]` to each row; the logits [len, vocab] of what was appended."""
        spans = {row: (self._lengths.get(row, 0), len(tokens)) for row, tokens in rows.items()}
        for row, (start, length) in spans.items():
            self._grow(row, start + length)
        positions = [p for start, length in spans.values() for p in range(start, start + length)]
        ragged = self._ragged(spans)
        batch = ForwardBatch(
            tokens=torch.tensor([token for tokens in rows.values() for token in tokens]),
            positions=torch.tensor(positions),
            ragged=ragged,
            rows=None,
            sample_at=torch.arange(len(positions)),
            caches=self.caches,
            plan=self.backend.plan(ragged, self.decoder.attention_specs[0]),
            backend=self.backend,
        )
        logits = self.decoder.forward(batch)
        return dict(zip(rows, logits.split([length for _, length in spans.values()]), strict=True))

    def _grow(self, row: str, length: int) -> None:
        blocks = self._blocks.setdefault(row, [])
        while len(blocks) * BLOCK < length:
            blocks.append(self._free.pop())
        self._lengths[row] = length

    def _ragged(self, spans: Mapping[str, tuple[int, int]]) -> Ragged:
        lengths = [length for _, length in spans.values()]
        ends = [start + length for start, length in spans.values()]
        widest = max(len(self._blocks[row]) for row in spans)
        table = [self._blocks[row] + [0] * (widest - len(self._blocks[row])) for row in spans]
        slots = [
            self._blocks[row][p // BLOCK] * BLOCK + p % BLOCK
            for row, (start, length) in spans.items()
            for p in range(start, start + length)
        ]
        return Ragged(
            query_start=torch.tensor([0, *lengths]).cumsum(0).int(),
            seq_lens=torch.tensor(ends).int(),
            block_table=torch.tensor(table).int(),
            kv_slots=torch.tensor(slots),
            max_query=max(lengths),
            max_seq=max(ends),
        )


def some_tokens(length: int, seed: int) -> list[int]:
    """Random tokens of the tiny models' vocabulary."""
    return torch.randint(3, 512, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def differences(decoder: Decoder, reference: Any, lengths: tuple[int, ...]) -> float:
    """The largest difference from a transformers model's logits, for rows that arrive in chunks and single tokens."""
    texts = {str(length): some_tokens(length, seed=length) for length in lengths}
    found = in_chunks(decoder, texts)
    with torch.no_grad():
        expected = {row: reference(torch.tensor([tokens])).logits[0] for row, tokens in texts.items()}
    return max(float((found[row] - expected[row]).abs().max()) for row in texts)


def in_chunks(decoder: Decoder, texts: dict[str, list[int]]) -> dict[str, Tensor]:
    """Logits of every token: the first step takes most of each text, the second a chunk, then two single tokens."""
    pages = Pages(decoder)
    logits: dict[str, list[Tensor]] = {row: [] for row in texts}
    left = dict(texts)
    for share in (0.6, 0.9, None, None, 1.0):
        step = {}
        for row, tokens in texts.items():
            done = len(tokens) - len(left[row])
            take = 1 if share is None else max(1, int(share * len(tokens)) - done)
            if left[row]:
                step[row], left[row] = left[row][:take], left[row][take:]
        for row, found in (pages.run(step) if step else {}).items():
            logits[row].append(found)
    return {row: torch.cat(found) for row, found in logits.items()}
