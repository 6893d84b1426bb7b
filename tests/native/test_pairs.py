"""A plain weight in pairs is packed by the kernels as by the reference, and read back as it was given."""

from __future__ import annotations

import pytest
import torch
from aril.kernels import dispatch
from aril.kernels.ops.matmul import linear, pack, pack_pairs, rows_of, unpack

PACKED = "native" in linear.providers() and pack(torch.ones(1, 2, dtype=torch.bfloat16)).layout == "pairs"
pytestmark = pytest.mark.skipif(not PACKED, reason=f"no products of pairs here; {dispatch.explain(linear)}")


@pytest.mark.parametrize(("n", "k"), [(1, 1), (32, 64), (50, 33), (97, 200)])
def test_the_kernels_pack_as_the_reference_does(n: int, k: int) -> None:
    w = torch.randn(n, k + 5).bfloat16()[:, :k]  # rows that stand apart
    packed = pack(w)
    assert torch.equal(packed.data, pack_pairs(w, packed.data.shape[2]).data)
    assert torch.equal(unpack(packed), w)
    ids = torch.tensor([n - 1, 0, n // 2, 0])
    assert torch.equal(rows_of(packed, ids), w[ids])
