"""A backend that is not taken says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from aril.core.errors import Unsupported
from aril.core.platform import detect
from aril.models.attention.backends.paged import PagedAttention
from aril.models.attention.base import AttentionSpec, choose

PLAIN = AttentionSpec(heads=4, kv_heads=2, head_dim=16, scale=0.25, cache_dtype=torch.float32)


def test_the_first_backend_that_serves_every_layer_is_taken() -> None:
    assert isinstance(choose("auto", [PLAIN, replace(PLAIN, window=8)], detect("cpu")), PagedAttention)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (replace(PLAIN, alibi=True), "paged: no ALiBi"),
        (replace(PLAIN, cache_dtype=torch.float8_e4m3fn), r"paged: no cache in torch\.float8_e4m3fn"),
        (replace(PLAIN, kv_heads=3), "paged: 4 heads are no multiple of 3 kv heads"),
    ],
)
@pytest.mark.parametrize("name", ["auto", "paged"])
def test_a_layer_that_nobody_serves_is_refused_with_every_reason(name: str, spec: AttentionSpec, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        choose(name, [PLAIN, spec], detect("cpu"))
