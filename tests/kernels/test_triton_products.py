"""Products with codes do not depend on how their work is dealt out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from aril.core.platform import detect
from aril.kernels.cases import Inputs
from aril.kernels.ops.grouped import GroupedWeight, Groups, matmul_grouped, pack_rows
from aril.kernels.ops.grouped_rows import rows_of_grouped

pytest.importorskip("triton")
grouped = pytest.importorskip("aril.kernels.triton.grouped")
runs = pytest.importorskip("aril.kernels.triton.runs")

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # in Triton's interpreter


@pytest.fixture
def make() -> Inputs:
    return Inputs(detect().device, torch.float32)


@pytest.fixture
def weight(make: Inputs) -> GroupedWeight:
    """Its K is cut into three shares."""
    codes, scales = make.integers(16, 40, 1600, dtype=torch.uint8), make.normal(13, 40, scale=0.01)
    return GroupedWeight((codes,), "codes", 40, 1600, 4, 128, Groups(scales), zeros=8)


def test_shares_add_up_alike_in_one_program_and_in_a_second_kernel(
    make: Inputs, weight: GroupedWeight, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, packed = make.normal(3, weight.k), runs.in_runs(weight)
    shares = grouped._shares(packed)
    assert shares[1] == 3
    with matmul_grouped.force("triton"):
        joined = matmul_grouped(x, packed)
        monkeypatch.setattr(grouped, "_shares", lambda _: shares)
        monkeypatch.setattr(grouped, "ENOUGH_PROGRAMS", 0)
        alone = matmul_grouped(x, packed)
    assert torch.equal(joined, alone)


def test_a_row_has_the_same_bits_looked_up_in_order_and_put_in_order(make: Inputs, weight: GroupedWeight) -> None:
    x, packed = make.normal(3, weight.k), runs.in_runs(replace(weight, order=make.permutation(weight.k)))
    with matmul_grouped.force("triton"):
        assert torch.equal(matmul_grouped(x, packed)[:1], matmul_grouped(x[:1], packed))


def test_rows_are_looked_up_in_runs_as_in_rows(make: Inputs, weight: GroupedWeight) -> None:
    ids = make.put([3, 39, 3], torch.int64)
    found, expected = (rows_of_grouped(pack(weight), ids) for pack in (runs.in_runs, pack_rows))
    assert torch.equal(found, expected)


def test_a_weight_that_holds_no_number_is_left_to_the_reference(make: Inputs, weight: GroupedWeight) -> None:
    bytes_ = make.integers(256, 40, 1600, dtype=torch.uint8)
    bytes_[7, 7] = 0xFF
    fp8 = replace(weight, planes=(bytes_,), bits=8, values="e4m3", zeros=0)
    assert runs.pack_runs(fp8) is None
