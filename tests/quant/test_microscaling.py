"""Inputs in NVFP4, MXFP4 and MXFP8: the nearest numbers of each type under scales that are small numbers themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aril.core.errors import Unsupported
from aril.quant.formats.compressed_tensors import CompressedTensors
from aril.quant.matrix import Matrix
from builders.compressed import E2M1, Made, args, config, group, mxfp4, mxfp8, nvfp4, read
from torch import Tensor

N, K = 24, 96
OVER = torch.tensor([300.0])
E4M3 = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()  # all that are not below 0
NV = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"}
MX = {"type": "float", "strategy": "group", "group_size": 32, "dynamic": True, "scale_dtype": "torch.uint8"}


def nearest(x: Tensor, numbers: Tensor) -> Tensor:
    """The nearest of `numbers`, whatever their sign."""
    return numbers[(x.abs()[..., None] - numbers).abs().argmin(-1)] * x.sign()


def under_nvfp4(x: Tensor) -> Tensor:
    groups = x.unflatten(1, (-1, 16))
    scales = nearest(groups.abs().amax(2, keepdim=True) / 6 * OVER, E4M3) / OVER
    return (nearest(groups / scales, E2M1) * scales).flatten(1)


def under_power_of_2(numbers: Tensor) -> Callable[[Tensor], Tensor]:
    """The largest of a group has the exponent of the largest number, or one less where it is 7/4 of a power of 2."""

    def rounded(x: Tensor) -> Tensor:
        groups = x.unflatten(1, (-1, 32))
        fractions, exponents = groups.abs().amax(2, keepdim=True).frexp()  # 0.5 to 1
        scales = torch.exp2(exponents - 1 + (fractions >= 7 / 8) - numbers[-1].log2().floor())
        return (nearest(groups / scales, numbers) * scales).flatten(1)

    return rounded


KINDS: dict[str, tuple[str, Callable[[Tensor], Made], dict[str, object], Callable[[Tensor], Tensor]]] = {
    "nvfp4": ("nvfp4-pack-quantized", nvfp4, NV, under_nvfp4),
    "mxfp4": ("mxfp4-pack-quantized", mxfp4, {**MX, "num_bits": 4}, under_power_of_2(E2M1)),
    "mxfp8": ("mxfp8-quantized", mxfp8, {**MX, "num_bits": 8}, under_power_of_2(E4M3)),
}


def found(kind: str, **beside: Tensor) -> tuple[Matrix, Made]:
    form, make, inputs, _ = KINDS[kind]
    made = make(torch.randn(N, K, generator=torch.Generator().manual_seed(0)))
    made.tensors.update(beside)
    weights = {**args(), **inputs, "dynamic": False}
    return read(CompressedTensors, config(form, group(weights, {**args(), **inputs})), made), made


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_become_the_nearest_numbers_of_their_type(kind: str) -> None:
    matrix, made = found(kind, **({"input_global_scale": OVER} if kind == "nvfp4" else {}))
    x = torch.randn(7, K, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 1, 7)[:, None]
    expected = KINDS[kind][3](x) @ made.dense.t()
    torch.testing.assert_close(matrix.product(torch.device("cpu"))(x), expected, rtol=1e-4, atol=1e-5)
    assert (expected - x @ made.dense.t()).abs().max() > 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_stay_zeros(kind: str) -> None:
    matrix, _ = found(kind, **({"input_global_scale": OVER} if kind == "nvfp4" else {}))
    assert not matrix.product(torch.device("cpu"))(torch.zeros(3, K)).any()


def test_a_global_scale_that_divides_by_nothing_is_refused_by_tensor() -> None:
    for name in ("input_global_scale", "weight_global_scale"):
        with pytest.raises(Unsupported, match=rf"down_proj\.{name} is 0.0"):
            found("nvfp4", **{"input_global_scale": OVER, name: torch.zeros(1)})
