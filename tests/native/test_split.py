"""A weight in three quarters of its bytes is the one that was given, and multiplies to the bits of all of them."""

from __future__ import annotations

import pytest
import torch
from aril.kernels import dispatch
from aril.kernels.ops.matmul import Weight, linear, pack, rows_of, unpack
from torch import Tensor

if "native" not in linear.providers():
    pytest.skip(f"no native kernels here; {dispatch.explain(linear)}", allow_module_level=True)
from aril.kernels.native import matmul
from aril.kernels.native.build import library

pytestmark = pytest.mark.skipif(not matmul.CAN_SPLIT, reason="these kernels split nothing")

SHAPES = [(1, 64), (32, 64), (50, 33), (97, 200), (576, 1536)]


def weight(n: int, k: int) -> Tensor:
    """Like a trained one, with a few numbers of every other size."""
    w = torch.randn(n, k + 5)
    w.view(-1)[:: 9 * k + 7] *= 1e-20
    w.view(-1)[1 :: 15 * k + 3] = 0.0
    return w.bfloat16()[:, :k]  # rows that stand apart


def split(w: Tensor) -> Weight:
    """In the layout that is tested here."""
    found = matmul.split_of(w)
    assert found is not None
    return found


def bits(t: Tensor) -> Tensor:
    """Zeros of either sign are not the same."""
    return t.contiguous().view(torch.int16)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_nothing_is_lost(n: int, k: int) -> None:
    w = weight(n, k)
    packed = split(w)
    assert torch.equal(bits(unpack(packed)), bits(w))
    ids = torch.tensor([n - 1, 0, n // 2, 0])
    assert torch.equal(bits(rows_of(packed, ids)), bits(w[ids]))
    with rows_of.force("reference"):
        assert torch.equal(bits(rows_of(packed, ids)), bits(w[ids]))


def test_it_takes_three_quarters_of_the_bytes() -> None:
    w = weight(1536, 576)
    assert split(w).data.nbytes < 0.78 * w.nbytes  # with a header and a list for each panel of 16 or 32 outputs


def test_weights_are_split_where_that_pays() -> None:
    assert (pack(weight(64, 64)).layout == "split") == library().splits
    assert pack(weight(64, 1)).layout != "split"  # a unit that is filled up


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 32, 33, 96, 300, 700])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_products_have_the_bits_of_what_is_not_split(n: int, k: int, rows: int) -> None:
    w, x = weight(n, k), torch.randn(rows, k).bfloat16()
    assert torch.equal(linear(x, split(w)), linear(x, matmul.whole(w)))


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_row_has_the_same_bits_alone_and_in_company(n: int, k: int) -> None:
    packed, x = split(weight(n, k)), torch.randn(300, k).bfloat16()
    together = linear(x, packed)
    for at in (0, 15, 16, 31, 32, 149, 299):
        assert torch.equal(linear(x[at : at + 1], packed)[0], together[at])


def test_a_panel_of_zeros_and_a_pruned_one_are_split() -> None:
    w = torch.randn(64, 128)
    w[:32] = 0.0
    w[32:][torch.rand(32, 128) < 0.5] = -0.0
    assert torch.equal(bits(unpack(split(w.bfloat16()))), bits(w.bfloat16()))


def test_an_input_that_is_large_in_all_rows_is_no_surprise() -> None:
    w = torch.rand(32, 576) * 0.5 + 0.5
    w[:, 33:40] *= 1e20
    assert torch.equal(unpack(split(w.bfloat16())), w.bfloat16())


def test_numbers_of_all_sizes_stay_whole_and_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "aril")
    w = torch.randint(1, 255, (40, 64)).to(torch.int16).mul(128).view(torch.bfloat16)
    assert matmul.split_of(w) is None
    packed = pack(w)
    assert packed.layout == ("pairs" if matmul.HAS_PAIRS else "panels")
    assert "weight_not_split outputs=40 inputs=64" in caplog.text
    assert torch.equal(bits(unpack(packed)), bits(w))


def test_what_is_infinite_stays_so() -> None:
    w = torch.full((5, 40), torch.inf).bfloat16()  # panels are filled up, with what 0 times it is still 0
    w[1:] = -1.5
    assert torch.equal(
        linear(torch.ones(2, 40).bfloat16(), split(w)), torch.tensor([[torch.inf, *[-60.0] * 4]] * 2).bfloat16()
    )
