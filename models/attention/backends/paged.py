"""Attention by our own ops over blocks: whichever provider the dispatch picks, on any device."""

from __future__ import annotations

from torch import Tensor

from ....core.platform import Platform
from ....kernels.ops.attention import paged_attention
from ....kernels.ops.kv import write_kv_
from ...batch import LayerCache, Ragged
from ..base import AttentionBackend, AttentionSpec


class PagedAttention(AttentionBackend):
    """One ragged call for prefills, chunks and decodes alike; the step's Ragged is all the plan it needs."""

    def refuses(self, spec: AttentionSpec, platform: Platform) -> str | None:
        if spec.alibi:
            return "no ALiBi"
        if not spec.cache_dtype.is_floating_point or spec.cache_dtype.itemsize < 2:
            return f"no cache in {spec.cache_dtype}"
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads are no multiple of {spec.kv_heads} kv heads"
        return None

    def plan(self, ragged: Ragged, spec: AttentionSpec) -> Ragged:
        return ragged

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, plan: Ragged, spec: AttentionSpec) -> Tensor:
        write_kv_(cache.k, cache.v, k, v, plan.kv_slots)
        return paged_attention(
            q,
            cache.k,
            cache.v,
            plan.query_start,
            plan.seq_lens,
            plan.block_table,
            max_query=plan.max_query,
            max_seq=plan.max_seq,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
        )


EXPORT = PagedAttention
