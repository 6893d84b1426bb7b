"""compressed-tensors, matrix by matrix: each layout means the numbers it was made of, rows are rounded as it says."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from aril.core.errors import Unsupported
from aril.quant.base import LinearShape, Stored
from aril.quant.formats.compressed_tensors import CompressedTensors
from aril.quant.matrix import GroupedMatrix, Int8Matrix, Matrix
from builders.compressed import (
    Made,
    args,
    config,
    fields,
    float8,
    group,
    integers,
    mxfp4,
    mxfp8,
    nvfp4,
    packed,
    read,
    unpacked,
)
from builders.rounded import Rounding, asymmetric_int8_tokens, fp8_groups, fp8_tokens, int8_tokens, to_fp8, to_int8
from torch import Tensor

CPU = torch.device("cpu")
N, K = 48, 160
TOKENS = args(8, "int", "token", dynamic=True)
FP8_TOKENS = args(8, "float", "token", dynamic=True)
FP4_WEIGHTS = {"nvfp4": args(4, "float", "tensor_group", group_size=16)}
FP4_WEIGHTS["mxfp4"] = args(4, "float", "group", group_size=32, scale_dtype="torch.uint8")
MX8_WEIGHTS = args(8, "float", "group", group_size=32, scale_dtype="torch.uint8")


def some_weight(n: int = N, k: int = K, seed: int = 0) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * 0.1


def found(form: str, weights: dict[str, Any], made: Made, inputs: dict[str, Any] | None = None, **more: Any) -> Matrix:
    return read(CompressedTensors, config(form, group(weights, inputs), **more), made)


def of_group(bits: int, size: int | None, *, symmetric: bool = True, **more: Any) -> dict[str, Any]:
    strategy = "channel" if size is None else "group"
    return args(bits, "int", strategy, group_size=size, symmetric=symmetric, **more)


PACKED = list(product(range(2, 9), (None, 16, 32, 64, 128)))


@pytest.mark.parametrize(("bits", "size"), PACKED)
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("padded", [False, True], ids=["dense", "padded"])
def test_packed_words_are_what_they_were_made_of(bits: int, size: int | None, symmetric: bool, padded: bool) -> None:
    made = packed(integers(some_weight(), bits, size, symmetric=symmetric), symmetric=symmetric, padded=padded)
    matrix = found("pack-quantized", of_group(bits, size, symmetric=symmetric), made)
    assert torch.equal(matrix.dense(), made.dense)


@pytest.mark.parametrize("inputs", [50, 70, 100])
@pytest.mark.parametrize("padded", [False, True], ids=["dense", "padded"])
def test_where_the_words_fit_both_packings_the_version_decides(inputs: int, padded: bool) -> None:
    made = packed(integers(some_weight(k=inputs), 3), padded=padded)
    assert made.tensors["weight_packed"].shape == fields(torch.zeros(N, inputs).long(), 3, padded=not padded).shape
    matrix = found("pack-quantized", args(3), made, version="0.17.0" if padded else "0.19.0")
    assert torch.equal(matrix.dense(), made.dense)


@pytest.mark.parametrize(("bits", "size"), [(4, None), (4, 32), (8, None), (8, 32), (6, 64)])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("form", ["int-quantized", "naive-quantized"])
def test_bytes_are_what_they_were_made_of(bits: int, size: int | None, symmetric: bool, form: str) -> None:
    made = unpacked(integers(some_weight(), bits, size, symmetric=symmetric), symmetric=symmetric)
    assert torch.equal(found(form, of_group(bits, size, symmetric=symmetric), made).dense(), made.dense)


def test_one_scale_for_all_may_be_stored_in_any_shape() -> None:
    numbers = integers(some_weight(), 8)
    one = replace(numbers, scales=numbers.scales.amax().expand(N, 1))
    for shape in ((), (1,), (1, 1)):
        made = unpacked(one)
        made.tensors["weight_scale"] = one.scales[0, 0].reshape(shape)
        assert torch.equal(found("int-quantized", args(8, "int", "tensor"), made).dense(), made.dense)


@pytest.mark.parametrize("form", ["float-quantized", "naive-quantized"])
@pytest.mark.parametrize(
    ("weights", "rows", "columns"),
    [
        (args(8, "float", "tensor"), N, K),
        (args(8, "float", "channel"), 1, K),
        (args(8, "float", "group", group_size=32), 1, 32),
        (args(8, "float", "block", block_structure=[128, 128]), 128, 128),
        (args(8, "float", "block", block_structure=[32, 64]), 32, 64),
        (args(8, "float", "block", block_structure="16x16"), 16, 16),
    ],
    ids=["tensor", "channel", "group", "blocks over both sides", "blocks that do not divide", "small blocks"],
)
def test_e4m3_is_what_it_was_made_of(form: str, weights: dict[str, Any], rows: int, columns: int) -> None:
    made = float8(some_weight(), rows, columns, dtype=torch.bfloat16)
    assert torch.equal(found(form, weights, made).dense(), made.dense)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_4_bit_floats_are_what_they_were_made_of_and_stay_in_4_bits(kind: str) -> None:
    made = {"nvfp4": nvfp4, "mxfp4": mxfp4}[kind](some_weight())
    matrix = found(f"{kind}-pack-quantized", FP4_WEIGHTS[kind], made)
    torch.testing.assert_close(matrix.dense(), made.dense, rtol=3e-7, atol=0)
    assert isinstance(matrix, GroupedMatrix)
    assert matrix.weight.bits == 4


def test_mxfp8_is_what_it_was_made_of() -> None:
    made = mxfp8(some_weight())
    assert torch.equal(found("mxfp8-quantized", MX8_WEIGHTS, made).dense(), made.dense)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_scales_keep_the_dtype_in_which_they_are_stored(dtype: torch.dtype) -> None:
    matrix = found("pack-quantized", of_group(4, 32), packed(integers(some_weight(), 4, 32, dtype=dtype)))
    assert isinstance(matrix, GroupedMatrix)
    assert matrix.weight.scales.fine.dtype == dtype


def test_act_order_by_groups_is_read_and_an_index_that_is_unused_is_not() -> None:
    index = (torch.arange(K) // 32)[torch.randperm(K, generator=torch.Generator().manual_seed(0))]
    made = packed(integers(some_weight(), 4, index=index))
    made.tensors["weight_g_idx"] = index.int()
    assert torch.equal(found("pack-quantized", of_group(4, 32, actorder="group"), made).dense(), made.dense)
    made = packed(integers(some_weight(), 4, 32))
    made.tensors["weight_g_idx"] = torch.full((K,), -1, dtype=torch.int32)
    assert torch.equal(found("pack-quantized", of_group(4, 32, actorder="group"), made).dense(), made.dense)


@pytest.mark.parametrize("order", ["weight", "static", None, False])
def test_act_order_by_weight_leaves_the_layout_as_it_is(order: object) -> None:
    made = packed(integers(some_weight(), 4, 32))
    assert torch.equal(found("pack-quantized", of_group(4, 32, actorder=order), made).dense(), made.dense)


def test_zero_points_of_older_versions_are_read_though_they_are_not_packed_or_not_needed() -> None:
    numbers = integers(some_weight(), 4, 32, symmetric=False)
    unneeded = packed(integers(some_weight(), 4, 32), symmetric=False)
    assert torch.equal(found("pack-quantized", of_group(4, 32), unneeded).dense(), unneeded.dense)
    made = packed(numbers)
    made.tensors["weight_zero_point"] = numbers.zeros.to(torch.int8)
    assert torch.equal(found("pack-quantized", of_group(4, 32, symmetric=False), made).dense(), made.dense)


# What becomes of inputs.

SCALE, ZERO = torch.tensor([0.02], dtype=torch.bfloat16), torch.tensor([-9], dtype=torch.int8)
STATIC = args(8, "int", "tensor")
INT_INPUTS: dict[str, tuple[dict[str, Any], dict[str, Tensor], Rounding]] = {
    "int8 tokens": (TOKENS, {}, int8_tokens),
    "asymmetric int8 tokens": ({**TOKENS, "symmetric": False}, {}, asymmetric_int8_tokens),
    "static": (STATIC, {"input_scale": SCALE}, lambda x: to_int8(x, SCALE.float())),
    "static, asymmetric": (
        {**STATIC, "symmetric": False},
        {"input_scale": SCALE, "input_zero_point": ZERO},
        lambda x: to_int8(x, SCALE.float(), ZERO.float()),
    ),
    "fp8 tokens": (FP8_TOKENS, {}, fp8_tokens),
    "static fp8": (args(8, "float", "tensor"), {"input_scale": SCALE}, lambda x: to_fp8(x, SCALE.float())),
    "fp8 groups": (args(8, "float", "group", group_size=64, dynamic=True), {}, fp8_groups(64)),
    "16 bits": ({}, {}, lambda x: x),
}
WEIGHTS = {"W8, channel": (8, None), "W8, group": (8, 32), "W4, channel": (4, None), "W4, group": (4, 32)}


@pytest.mark.parametrize("inputs", INT_INPUTS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("rows", [1, 7])
def test_rows_are_rounded_as_the_scheme_says_before_they_are_multiplied(inputs: str, weights: str, rows: int) -> None:
    said, beside, rounded = INT_INPUTS[inputs]
    made = unpacked(integers(some_weight(), *WEIGHTS[weights]))
    made.tensors.update(beside)
    matrix = found("int-quantized", of_group(*WEIGHTS[weights]), made, said or None)
    x = torch.randn(rows, K, generator=torch.Generator().manual_seed(1))
    assert_multiplies(matrix, x, rounded(x) @ made.dense.t())
    assert isinstance(matrix, Int8Matrix) == (weights == "W8, channel" and "fp8" not in inputs and inputs != "16 bits")


def assert_multiplies(matrix: Matrix, x: Tensor, expected: Tensor) -> None:
    """In float32, and in bfloat16 by the kernels that serve; a rounding that is left out would show in both."""
    multiply = matrix.product(CPU)
    torch.testing.assert_close(multiply(x), expected, rtol=1e-4, atol=1e-5)
    in_bfloat16 = multiply(x.bfloat16()).float()
    assert (in_bfloat16 - expected).norm() / expected.norm() < 0.02


# What a wrong reading would make of the same tensors: each differs, so that the tests above would fail with it.

MISREADINGS: dict[str, tuple[str, Any]] = {
    "nibbles from the high end": (
        "weight_packed",
        lambda made: fields(made.values.unflatten(1, (-1, 8)).flip(2).flatten(1), 4),
    ),
    "fields without their offset": ("weight_packed", lambda made: fields(made.values % 16 - 8, 4)),
    "words down the columns": (
        "weight_packed",
        lambda made: fields(made.values.t().contiguous(), 4).t().reshape(N, -1),
    ),
    "zero points along the inputs": (
        "weight_zero_point",
        lambda made: fields(made.zeros, 4).reshape(N // 8, -1)[:, : K // 32],
    ),
    "zero points without their offset": (
        "weight_zero_point",
        lambda made: fields(made.zeros.t().contiguous() % 16 - 8, 4).t().contiguous(),
    ),
    "scales of the next group": ("weight_scale", lambda made: made.scales.roll(1, 1)),
}


@pytest.mark.parametrize("misread", MISREADINGS)
def test_another_reading_gives_other_numbers(misread: str) -> None:
    numbers = integers(some_weight(), 4, 32, symmetric=False)
    made = packed(numbers, symmetric=False)
    name, other = MISREADINGS[misread]
    made.tensors[name] = other(numbers)
    differ = found("pack-quantized", of_group(4, 32, symmetric=False), made).dense() != made.dense
    assert differ.float().mean() > 0.4


def test_a_matrix_that_contradicts_itself_is_refused_by_tensor() -> None:
    index = torch.zeros(K, dtype=torch.int32)
    broken = {
        "weight_shape": torch.tensor([N, K - 1]),
        "weight_scale": torch.full((N, 5), float("nan"), dtype=torch.bfloat16),
        "weight_g_idx": index,
    }
    for name, tensor in broken.items():
        made = packed(integers(some_weight(), 4, 32))
        made.tensors[name] = tensor
        with pytest.raises(Unsupported, match=rf"down_proj\.{name}"):
            found("pack-quantized", of_group(4, 32), made)
    made = unpacked(integers(some_weight(), 8))
    with pytest.raises(Unsupported, match=r"down_proj\.weight holds integers of more than 4 bits"):
        found("int-quantized", args(4), made)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_method_says_what_it_is_and_how_large_it_will_be(bits: int) -> None:
    made = packed(integers(some_weight(), bits, 32, symmetric=False), symmetric=False)
    stored = {f"m.{name}": Stored(tuple(each.shape), each.dtype) for name, each in made.tensors.items()}
    said = config("pack-quantized", group(of_group(bits, 32, symmetric=False), TOKENS))
    method = CompressedTensors.from_checkpoint(said, stored).linear("m", LinearShape(K, N, torch.bfloat16))
    assert method.describe() == f"int{bits}, group 32, zero points, int8 inputs"
    assert method.weight_bytes(LinearShape(K, N, torch.bfloat16)) == N * K * bits // 8 + N * (K // 32) * (2 + 1)
