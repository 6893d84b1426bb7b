"""A plain weight in pairs is packed by the kernels as by the reference, and read back as it was given."""

from __future__ import annotations

import pytest
import torch
from aril.kernels import dispatch
from aril.kernels.ops.matmul import linear, pack_pairs, rows_of, unpack

if "native" not in linear.providers():
    pytest.skip(f"no native kernels here; {dispatch.explain(linear)}", allow_module_level=True)
from aril.kernels.native import matmul

pytestmark = pytest.mark.skipif(not matmul.HAS_PAIRS, reason="this machine multiplies no pairs")


@pytest.mark.parametrize(("n", "k"), [(1, 1), (32, 64), (50, 33), (97, 200)])
def test_the_kernels_pack_as_the_reference_does(n: int, k: int) -> None:
    w = torch.randn(n, k + 5).bfloat16()[:, :k]  # rows that stand apart
    packed = matmul.pairs_of(w)
    assert torch.equal(packed.data, pack_pairs(w, packed.data.shape[2]).data)
    assert torch.equal(unpack(packed), w)
    ids = torch.tensor([n - 1, 0, n // 2, 0])
    assert torch.equal(rows_of(packed, ids), w[ids])
