"""fp8 checkpoints: one scale, one per output or one per block, in every spelling; inputs in e4m3; what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from aril.core.errors import Unsupported
from aril.quant.base import LinearShape, Stored
from aril.quant.formats.fp8 import Fp8
from aril.quant.matrix import GroupedMatrix, Matrix, SideBySide, product_of
from builders.compressed import MODULE, Made, float8, read
from builders.rounded import Rounding, fp8_groups, fp8_tokens, to_fp8
from torch import Tensor

N, K = 72, 200
CPU = torch.device("cpu")
DYNAMIC = {"quant_method": "fp8", "activation_scheme": "dynamic"}
SCALE = torch.tensor(0.03)
SHAPE = LinearShape(K, N, torch.float32)


def some_weight(n: int = N, seed: int = 0) -> Tensor:
    return torch.randn(n, K, generator=torch.Generator().manual_seed(seed)) * 0.1


def found(made: Made, **said: Any) -> Matrix:
    return read(Fp8, {**DYNAMIC, **said}, made)


def shaped(made: Made, shape: tuple[int, ...], name: str = "weight_scale") -> Made:
    made.tensors[name] = made.tensors[name].reshape(shape)
    return made


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_one_scale_multiplies_whatever_its_name_and_shape(shape: tuple[int, ...], name: str) -> None:
    made = shaped(float8(some_weight(), N, K, name=name), shape, name)
    assert torch.equal(found(made).dense(), made.dense)


@pytest.mark.parametrize("shape", [(N,), (N, 1)], ids=str)
def test_a_scale_per_output_is_told_by_its_shape(shape: tuple[int, ...]) -> None:
    made = shaped(float8(some_weight(), 1, K), shape)
    assert torch.equal(found(made).dense(), made.dense)


@pytest.mark.parametrize("block", [(128, 128), (64, 64), (32, 48), (16, 128), (1, 128)], ids=str)
def test_blocks_need_not_divide_the_matrix(block: tuple[int, int]) -> None:
    made = float8(some_weight(), *block, name="weight_scale_inv")
    assert torch.equal(found(made, weight_block_size=list(block)).dense(), made.dense)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_keep_the_dtype_in_which_they_are_stored(dtype: torch.dtype) -> None:
    matrix = found(float8(some_weight(), 1, K, dtype=dtype))
    assert isinstance(matrix, GroupedMatrix)
    assert matrix.weight.scales.fine.dtype == dtype


def test_scales_may_be_powers_of_2_in_a_byte() -> None:
    made = float8(some_weight(), 64, 64, dtype=torch.float8_e8m0fnu, name="weight_scale_inv")
    said = {"weight_block_size": [64, 64], "scale_fmt": "ue8m0", "fmt": "e4m3"}
    assert torch.equal(found(made, **said).dense(), made.dense)


INPUTS: dict[str, tuple[dict[str, Any], dict[str, Tensor], Rounding]] = {
    "each row's own": ({}, {}, fp8_tokens),
    "each row's own by blocks": ({"weight_block_size": [64, 64]}, {}, fp8_groups(64)),
    "calibrated": ({"activation_scheme": "static"}, {"input_scale": SCALE}, lambda x: to_fp8(x, SCALE)),
    "calibrated, of transformers": (
        {"activation_scheme": "static", "weight_block_size": None},
        {"activation_scale": SCALE},
        lambda x: to_fp8(x, SCALE),
    ),
}


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("rows", [1, 9])
def test_rows_are_rounded_as_the_scheme_says_before_they_are_multiplied(inputs: str, rows: int) -> None:
    said, beside, rounded = INPUTS[inputs]
    size = (64, 64) if said.get("weight_block_size") else (N, K)
    made = float8(some_weight(), *size)
    made.tensors.update(beside)
    x = torch.randn(rows, K, generator=torch.Generator().manual_seed(1))
    multiply, expected = found(made, **said).product(CPU), rounded(x) @ made.dense.t()
    torch.testing.assert_close(multiply(x), expected, rtol=1e-4, atol=1e-5)
    assert (multiply(x.bfloat16()).float() - expected).norm() / expected.norm() < 0.02


@pytest.mark.parametrize("size", [(N, K), (64, 64)], ids=["one scale", "blocks"])
def test_parts_of_a_fused_product_keep_their_own_scales_and_are_one(size: tuple[int, int]) -> None:
    parts = [float8(some_weight(n, seed=n) * n, *size) for n in (N, 24, 40)]
    said = {"weight_block_size": list(size)} if size == (64, 64) else {}
    product = product_of([found(part, **said) for part in parts], CPU)
    assert not isinstance(product, SideBySide)
    x = torch.randn(5, K)
    expected = (fp8_groups(64) if said else fp8_tokens)(x) @ torch.cat([part.dense for part in parts]).t()
    torch.testing.assert_close(product(x), expected, rtol=1e-4, atol=1e-3)


def test_parts_of_a_fused_product_with_different_scales_of_inputs_stand_side_by_side() -> None:
    parts = [float8(some_weight(n, seed=n), n, K) for n in (N, 24)]
    for part, scale in zip(parts, (0.03, 0.05), strict=True):
        part.tensors["input_scale"] = torch.tensor(scale)
    product = product_of([found(part, activation_scheme="static") for part in parts], CPU)
    x = torch.randn(5, K)
    apart = [to_fp8(x, part.tensors["input_scale"]) @ part.dense.t() for part in parts]
    torch.testing.assert_close(product(x), torch.cat(apart, 1), rtol=1e-4, atol=1e-5)


def test_a_scale_that_divides_gives_other_numbers() -> None:
    made = float8(some_weight(), 64, 64, name="weight_scale_inv")
    made.tensors["weight_scale_inv"] = 1 / made.tensors["weight_scale_inv"]
    assert (found(made, weight_block_size=[64, 64]).dense() != made.dense).float().mean() > 0.9


def test_blocks_taken_along_the_other_side_give_other_numbers() -> None:
    made = float8(some_weight(), 32, 64)
    scales = made.tensors["weight_scale"]
    made.tensors["weight_scale"] = scales.t().reshape(scales.shape)
    assert (found(made, weight_block_size=[32, 64]).dense() != made.dense).float().mean() > 0.5


@pytest.mark.parametrize("field", ["ignored_layers", "modules_to_not_convert"])
@pytest.mark.parametrize("name", [MODULE, "mlp.down_proj", "down_proj"])
def test_a_module_that_is_ignored_stays_as_it_is_and_must_be_plain(field: str, name: str) -> None:
    said = {**DYNAMIC, field: [name, "lm_head"]}
    plain = {f"{MODULE}.weight": Stored((N, K), torch.bfloat16)}
    assert Fp8.from_checkpoint(said, plain).linear(MODULE, SHAPE).describe() == "not quantised"
    stored = {f"{MODULE}.weight": Stored((N, K), torch.float8_e4m3fn)}
    with pytest.raises(Unsupported, match=rf"{MODULE} is not quantised, but {MODULE}\.weight is"):
        Fp8.from_checkpoint(said, stored).linear(MODULE, SHAPE)


def test_a_module_that_nobody_lists_is_what_the_header_says() -> None:
    plain = {f"{MODULE}.weight": Stored((N, K), torch.bfloat16)}
    assert Fp8.from_checkpoint(DYNAMIC, plain).linear(MODULE, SHAPE).describe() == "not quantised"
    plain[f"{MODULE}.weight_scale"] = Stored((1,), torch.float32)
    with pytest.raises(Unsupported, match=rf"{MODULE}\.weight is torch.bfloat16, not fp8"):
        Fp8.from_checkpoint(DYNAMIC, plain).linear(MODULE, SHAPE)


REFUSED = {
    "fmt": "e5m2",
    "activation_scheme": "sometimes",
    "scale_fmt": "ue5m3",
    "weight_block_size": [128],
    "expert_dtype": "fp4",
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_config_that_cannot_be_read_is_refused_by_field(field: str) -> None:
    with pytest.raises(Unsupported, match=rf"quantization_config\.{field} is"):
        Fp8.from_checkpoint({**DYNAMIC, field: REFUSED[field]}, {})


def test_numbers_that_are_none_are_refused_by_tensor() -> None:
    made = float8(some_weight(), 1, K)
    made.tensors["weight"].view(torch.uint8)[N - 1, K - 1] = 0xFF
    with pytest.raises(Unsupported, match=rf"{MODULE}\.weight holds NaN"):
        found(made)
    made = float8(some_weight(), 64, 64, dtype=torch.float8_e8m0fnu)
    made.tensors["weight_scale"].view(torch.uint8)[0, 0] = 0xFF
    with pytest.raises(Unsupported, match=rf"{MODULE}\.weight_scale holds numbers that are not finite"):
        found(made, weight_block_size=[64, 64])
    made = float8(some_weight(), N, K)
    made.tensors["input_scale"] = torch.tensor(0.0)
    with pytest.raises(Unsupported, match=rf"{MODULE}\.input_scale is 0.0"):
        found(made, activation_scheme="static")


@pytest.mark.parametrize(
    ("said", "scales", "words"),
    [
        ({}, (1,), "fp8 (e4m3), one scale, fp8 inputs"),
        ({"activation_scheme": "static"}, (N, 1), "fp8 (e4m3), a scale per output, static fp8 inputs"),
        ({"weight_block_size": [64, 32]}, (2, 7), "fp8 (e4m3), blocks of 64 x 32, fp8 inputs in groups of 32"),
    ],
    ids=["tensor", "channel", "block"],
)
def test_a_method_says_what_it_is_and_how_large_it_will_be(
    said: dict[str, Any], scales: tuple[int, ...], words: str
) -> None:
    stored = {"m.weight": Stored((N, K), torch.float8_e4m3fn), "m.weight_scale": Stored(scales, torch.float32)}
    method = Fp8.from_checkpoint({**DYNAMIC, **said}, stored).linear("m", SHAPE)
    assert method.describe() == words
    assert method.weight_bytes(SHAPE) == N * K + 4 * N * (7 if "weight_block_size" in said else 1)


def test_kv_scales_are_found_by_any_of_their_names() -> None:
    path = "model.layers.0.self_attn"
    for names in ({"k": "k_scale", "v": "v_scale"}, {"k": "kv_scale", "v": "kv_scale"}):
        stored = {f"{path}.{name}": Stored((), torch.float32) for name in names.values()}
        found = Fp8.from_checkpoint(DYNAMIC, stored).kv_scales(path)
        assert found == {which: f"{path}.{name}" for which, name in names.items()}
    assert Fp8.from_checkpoint(DYNAMIC, {}).kv_scales(path) == {}
