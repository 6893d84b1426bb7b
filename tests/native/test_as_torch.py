"""In float32 norms and rotations are torch's to the last bit: where inputs are rounded behind, that bit can show."""

from __future__ import annotations

import platform

import pytest
import torch
from aril.kernels import dispatch
from aril.kernels.ops.norm import rms_norm
from aril.kernels.ops.rope import rotate_

pytestmark = [
    pytest.mark.skipif("native" not in rms_norm.providers(), reason=dispatch.explain(rms_norm)),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="torch adds up in another order on other processors"),
]


@pytest.mark.parametrize("size", [64, 100, 160, 576, 1536, 2048, 4096, 8192])
def test_a_norm_has_the_bits_of_transformers(size: int) -> None:
    x, weight = torch.randn(40, size), torch.randn(size)
    with rms_norm.force("native"):
        found = rms_norm(x, weight, 1e-5)
    assert torch.equal(found, weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)))


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_rotation_has_the_bits_of_torch(interleaved: bool) -> None:
    q, k, angles, positions = torch.randn(9, 4, 20), torch.randn(9, 2, 20), torch.randn(50, 10), torch.arange(9)
    turned = {}
    for provider in ("native", "reference"):
        turned[provider] = q.clone(), k.clone()
        with rotate_.force(provider):
            rotate_(*turned[provider], positions, angles.cos(), angles.sin(), interleaved=interleaved)
    assert all(map(torch.equal, turned["native"], turned["reference"]))
