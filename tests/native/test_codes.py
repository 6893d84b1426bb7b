"""A weight in codes multiplies as its float32 matrix would, bit for bit, and its panels hold what they were given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from aril.kernels import dispatch
from aril.kernels.ops import grouped, matmul
from aril.kernels.ops.fields import pack_fields, unpack_fields
from aril.kernels.ops.grouped import (
    GroupedWeight,
    Groups,
    Values,
    codes_of,
    dense,
    matmul_grouped,
    pack,
)
from aril.kernels.ops.grouped_rows import rows_of_grouped
from torch import Tensor

pytestmark = pytest.mark.skipif("native" not in matmul.linear.providers(), reason=dispatch.explain(matmul.linear))

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
N, K = 80, 1376  # not whole panels, not whole blocks of k


@pytest.fixture(autouse=True)
def _native_and_seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with matmul.linear.force("native"), matmul_grouped.force("native"):
        yield


def weight(bits: int, group: int, values: Values = "integers", **more: object) -> GroupedWeight:
    codes = torch.randint(1 << bits, (N, K), dtype=torch.uint8)
    if values == "e4m3":
        codes = codes & 0xBF  # finite, and near enough to one another
    scales = Groups(torch.randn(-(-K // group), N).half())
    table = torch.randn(1 << bits) if values == "table" else None
    zero = 1 << (bits - 1) if values == "integers" else 0
    made = GroupedWeight((codes,), "codes", N, K, bits, group, scales, zero, values=values, table=table)
    return replace(made, **more)  # type: ignore[arg-type]  # a partial record


def two_levels(group: int, high: int) -> Groups:
    count = -(-K // group)
    return Groups(torch.randint(high, (count, N), dtype=torch.uint8), torch.randn(-(-count // 8), N).half(), 8)


ONE_PRODUCT = {  # W is one rounded product: what `dense` computes is what the kernel does
    **{f"{bits} bits": lambda bits=bits: weight(bits, 32) for bits in grouped.PLANES},
    "groups of 16": lambda: weight(3, 16),
    "groups of 20, which no unit divides": lambda: weight(6, 20),
    "one group": lambda: weight(4, K),
    "zero points": lambda: weight(4, 32, zeros=torch.randint(16, (43, N), dtype=torch.uint8)),
    "bfloat16 scales": lambda: weight(4, 128, scales=Groups(torch.randn(11, N).bfloat16())),
    "e4m3": lambda: weight(8, 128, "e4m3", scales=Groups(torch.randn(11, N))),
    "a codebook": lambda: weight(4, 64, "table", scales=Groups(torch.randn(22, N))),
    "a codebook of 8": lambda: weight(3, 64, "table"),
    "a codebook of 4": lambda: weight(2, 64, "table"),
    "act order": lambda: weight(4, 32, order=torch.randperm(K)),
}
ALL = ONE_PRODUCT | {
    "minima": lambda: weight(4, 32, scales=two_levels(32, 64), mins=two_levels(32, 64), zeros=0),
    "float16 minima": lambda: weight(4, 32, zeros=0, mins=Groups(torch.randn(43, N).half())),
    "float32 scales": lambda: weight(8, 64, scales=Groups(torch.randn(22, N)), zeros=7),
}
KINDS = pytest.mark.parametrize("kind", ALL)


@DTYPES
@KINDS
def test_a_row_times_codes_is_the_same_alone_and_in_a_batch(dtype: torch.dtype, kind: str) -> None:
    x, packed = torch.randn(130, K, dtype=dtype), pack(ALL[kind]())
    together = matmul_grouped(x, packed)
    for rows in (slice(0, 1), slice(1, 3), slice(3, 7), slice(7, 10), slice(10, 26), slice(57, 130)):
        assert torch.equal(matmul_grouped(x[rows], packed), together[rows])


@pytest.mark.parametrize("kind", ONE_PRODUCT)
def test_codes_multiply_as_their_float32_matrix_does(kind: str) -> None:
    x, given = torch.randn(9, K), ONE_PRODUCT[kind]()
    ordered = x if given.order is None else x[:, given.order]
    expected = matmul.linear(ordered, matmul.pack(dense(given, in_order=True)))
    for rows in (slice(0, 1), slice(0, 4), slice(0, 9)):
        assert torch.equal(matmul_grouped(x[rows], pack(given)), expected[rows])


@KINDS
def test_bfloat16_rows_meet_the_numbers_that_the_codes_mean(kind: str) -> None:
    x, given = torch.randn(9, K, dtype=torch.bfloat16), ALL[kind]()
    expected = x.double() @ dense(given).double().t()
    size = x.double().abs() @ dense(given).double().abs().t()
    found = matmul_grouped(x, pack(given)).double()
    assert ((found - expected).abs() <= 2.0**-8 * expected.abs() + 2.0**-16 * size).all()


@KINDS
def test_a_large_input_costs_its_neighbours_little(kind: str) -> None:
    x, given = torch.randn(9, K), ALL[kind]()
    x[:, 5::300] *= 500
    x = x.bfloat16()
    w = dense(given).double()
    expected, most = x.double() @ w.t(), x.double().abs().amax(1, keepdim=True) * w.abs().sum(1)
    found = matmul_grouped(x, pack(given)).double()
    assert ((found - expected).abs() <= 2.0**-8 * expected.abs() + 2.0**-16 * most).all()


@DTYPES
@pytest.mark.parametrize("kind", ["4 bits", "8 bits", "zero points", "minima", "float16 minima"])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_says_so_and_harms_no_other(dtype: torch.dtype, kind: str, broken: float) -> None:
    x, packed = torch.randn(9, K, dtype=dtype), pack(ALL[kind]())
    sound = matmul_grouped(x, packed)
    x[4, 77] = broken
    found = matmul_grouped(x, packed)
    assert not found[4].isfinite().any()
    others = [row for row in range(9) if row != 4]
    assert torch.equal(found[others], sound[others])


@KINDS
def test_panels_are_read_back_as_they_were_given(kind: str) -> None:
    given = ALL[kind]()
    packed = pack(given)
    assert packed.layout in ("panels", "pairs")
    assert torch.equal(codes_of(packed), given.planes[0])
    assert torch.equal(dense(packed), dense(given))
    ids = torch.tensor([N - 1, 0, 33, 33])
    assert torch.equal(rows_of_grouped(packed, ids), dense(given)[ids])


def strided(codes: Tensor) -> dict[str, Tensor]:
    wide = torch.zeros(2 * N, 3 * K, dtype=torch.uint8)
    wide[::2, ::3] = codes
    return {"by columns": codes.t().contiguous().t(), "apart": wide[::2, ::3]}


@pytest.mark.parametrize("bits", grouped.PLANES)
def test_codes_are_packed_from_wherever_they_lie(bits: int) -> None:
    given = weight(bits, 32)
    expected = pack(given).planes
    for label, codes in strided(given.planes[0]).items():
        found = pack(replace(given, planes=(codes,))).planes
        assert all(map(torch.equal, found, expected)), label


@pytest.mark.parametrize("bits", range(1, 9))
def test_fields_come_out_of_words_that_lie_in_columns(bits: int) -> None:
    words = torch.randint(-(1 << 31), (1 << 31) - 1, (2 * bits, 70), dtype=torch.int32)
    found = unpack_fields(words.t(), bits, 61)
    assert found.stride(0) == 1
    assert torch.equal(found, unpack_fields.reference(words.t(), bits, 61))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_codes_in_columns_are_packed_as_if_in_rows(bits: int) -> None:
    codes = torch.randint(1 << bits, (61, 70), dtype=torch.uint8)
    assert torch.equal(pack_fields(codes.t(), bits), pack_fields.reference(codes.t(), bits))
