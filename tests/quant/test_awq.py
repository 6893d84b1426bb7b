"""AWQ in its three layouts: the numbers are those of the codes, whatever the order of the fields in a word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.core.errors import Unsupported
from aril.models.loader import load_model
from aril.models.source import locate
from aril.quant.base import LinearShape, Stored
from aril.quant.formats.awq import Awq
from aril.quant.matrix import GroupedMatrix, Matrix
from builders.mixed import assert_mixed_batch_follows, plain_model
from builders.models import make_model
from builders.pages import differences
from builders.quantised import (
    AWQ_ORDER,
    Codes,
    Tensors,
    awq_tensors,
    groups_of,
    make_quantised,
    read_by_hand,
    read_matrix,
    rounded,
    some_codes,
    stream,
)
from builders.recorded import assert_answers_as_recorded, recorded
from torch import Tensor

LAYOUTS, GROUPS = ("gemm", "gemv", "gemv_fast"), (-1, 32, 64, 128)
N, K = 64, 384
RECORDED = "aawq_w4_g64_gemm"
PLAIN = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
Change = Callable[[Tensors], object]


def read(codes: Codes, tensors: Tensors, **more: Any) -> Matrix:
    return read_matrix(Awq, {**PLAIN, **more}, tensors, codes)


def meant(codes: Codes, layout: str) -> Tensor:
    """gemv_fast stores scale * zero rounded to 16 bits, and means that."""
    if layout != "gemv_fast":
        return codes.dense()
    scales = codes.scales.float()
    minima = -(scales * codes.zeros.float()).half().float()
    return codes.values.float() * scales[codes.index].t() + minima[codes.index].t()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
def test_a_matrix_is_what_its_codes_are(layout: str, group: int, symmetric: bool) -> None:
    codes = some_codes(N, 4, groups_of(K, group), symmetric=symmetric)
    flags = {"group_size": group, "version": layout, "zero_point": not symmetric}
    assert torch.equal(read(codes, awq_tensors(codes, layout), **flags).dense(), meant(codes, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_packed_matrix_multiplies_rows_as_its_dense_one(layout: str) -> None:
    codes = some_codes(N, 4, groups_of(K, 64), symmetric=False)
    found = read(codes, awq_tensors(codes, layout), version=layout)
    x = torch.randn(5, K)
    expected = x @ meant(codes, layout).t()
    torch.testing.assert_close(found.product(torch.device("cpu"))(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_zero_points_in_the_file_the_middle_is_zero(layout: str) -> None:
    codes = some_codes(N, 4, groups_of(K, 64), symmetric=True)
    tensors = awq_tensors(codes, layout)
    del tensors["qzeros"]
    found = read(codes, tensors, version=layout, zero_point=False)
    assert isinstance(found, GroupedMatrix)
    assert found.weight.zeros == 8
    assert torch.equal(found.dense(), codes.dense())


@pytest.mark.parametrize(
    "config",
    [
        {"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"},
        {"bits": 4, "group_size": 64, "checkpoint_format": "gemm", "format": "gemm", "sym": False, "method": "awq"},
        {"bits": 4, "group_size": 64, "modules_to_not_convert": None},
    ],
    ids=["older keys", "GPTQModel", "hardly anything"],
)
def test_each_tool_spells_the_config_in_its_way(config: dict[str, Any]) -> None:
    codes = some_codes(N, 4, groups_of(K, 64), symmetric=False)
    found = read_matrix(Awq, {"quant_method": "awq", **config}, awq_tensors(codes, "gemm"), codes)
    assert torch.equal(found.dense(), codes.dense())


# What a wrong reading would make of the same tensors.


@pytest.mark.parametrize("order", [list(range(8)), AWQ_ORDER[::-1]], ids=["plain", "reversed"])
def test_fields_in_another_order_give_other_numbers(order: list[int]) -> None:
    codes = some_codes(N, 4, groups_of(K, 64), symmetric=False)
    words = stream(codes.values.t().unflatten(1, (-1, 8))[:, :, order].flatten(1), 4)
    assert differ(read(codes, {**awq_tensors(codes, "gemm"), "qweight": words}), codes) > 0.6


def test_zero_points_plus_one_give_other_numbers() -> None:
    codes = some_codes(N, 4, groups_of(K, 64), symmetric=False)
    more = Codes(4, codes.values, (codes.zeros + 1) % 16, codes.scales, codes.index)
    assert differ(read(codes, awq_tensors(more, "gemm")), codes) > 0.9


def differ(found: Matrix, codes: Codes) -> float:
    """The share of weights that are not what the codes mean."""
    return float((found.dense() != codes.dense()).float().mean())


# Whole models.


def awq_model(folder: Path, base: Path, layout: str, *, never: tuple[str, ...] = (), **config: Any) -> Tensors:
    """A checkpoint with every matrix of the layers packed but those of `never`; what they mean."""

    def pack(name: str, weight: Tensor) -> tuple[Tensors, Tensor] | None:
        if name == "lm_head" or any(part in name for part in never):
            return None
        codes = rounded(weight, 4, groups_of(weight.shape[1], 32), symmetric=False)
        return awq_tensors(codes, layout), meant(codes, layout)

    return make_quantised(folder, base, {**PLAIN, "group_size": 32, "version": layout, **config}, pack)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_gives_the_logits_of_its_dequantised_weights(layout: str, tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", intermediate_size=192)
    dense = awq_model(tmp_path / "q", base, layout)
    assert len(dense) == 3 * 7
    assert differences(load(tmp_path / "q"), plain_model(tmp_path / "q", dense), lengths=(40, 7)) < 1e-4


def test_modules_that_are_not_converted_stay_plain(tmp_path: Path) -> None:
    never = ("self_attn.v_proj", "layers.1.")
    dense = awq_model(tmp_path / "q", make_model(tmp_path / "base"), "gemm", never=never, modules_to_not_convert=never)
    assert len(dense) == 2 * 6
    assert differences(load(tmp_path / "q"), plain_model(tmp_path / "q", dense), lengths=(20,)) < 1e-4


def test_a_packed_module_that_must_not_be_converted_is_refused(tmp_path: Path) -> None:
    awq_model(tmp_path / "q", make_model(tmp_path / "base"), "gemm", modules_to_not_convert=["v_proj"])
    with pytest.raises(Unsupported, match=r"v_proj\.qweight is stored, but modules_to_not_convert 'v_proj' leaves"):
        load(tmp_path / "q")


def test_a_bias_of_the_architecture_is_kept(tmp_path: Path) -> None:
    dense = awq_model(tmp_path / "q", make_model(tmp_path / "base", "qwen2", num_hidden_layers=1), "gemm")
    assert differences(load(tmp_path / "q"), plain_model(tmp_path / "q", dense), lengths=(20,)) < 1e-4


@pytest.mark.parametrize("layout", ["gemm", "gemv_fast"])
def test_two_adapters_and_the_base_in_one_batch_answer_as_peft(layout: str, tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", intermediate_size=192, num_hidden_layers=2)
    dense = awq_model(tmp_path / "q", base, layout)
    assert_mixed_batch_follows(plain_model(tmp_path / "q", dense), tmp_path / "q", tmp_path)


def load(folder: Path) -> Any:
    return load_model(locate(str(folder)), dtype=torch.float32, device=torch.device("cpu"))


def test_a_real_checkpoint_answers_as_recorded() -> None:
    assert_answers_as_recorded(recorded(RECORDED))


def test_adapters_on_a_real_checkpoint_answer_as_peft(tmp_path: Path) -> None:
    folder = recorded(RECORDED)
    assert_mixed_batch_follows(plain_model(folder, read_by_hand(folder)), folder, tmp_path)


REFUSED: dict[str, tuple[dict[str, Any], Change | None, str]] = {
    "3 bits": ({"bits": 3}, None, "bits is 3; AWQ is read with 4"),
    "marlin": ({"version": "marlin"}, None, "version is 'marlin'; of AWQ gemm, gemv, gemv_fast are read"),
    "exllama": ({"version": "exllama"}, None, "version is 'exllama'"),
    "ipex": ({"version": "ipex"}, None, "version is 'ipex'"),
    "llm-awq": ({"version": "llm-awq"}, None, "version is 'llm_awq'"),
    "two layouts": ({"checkpoint_format": "gemv"}, None, "version and checkpoint_format say gemm and gemv"),
    "keys of two ages": ({"w_bit": 8}, None, "w_bit 8 contradicts bits 4"),
    "a group that does not divide": ({"group_size": 100}, None, "384 inputs are no multiple of 100, as AWQ gemm"),
    "a word for a flag": ({"zero_point": "no"}, None, "zero_point is 'no'; it must be true or false"),
    "zero points where there are none": ({"zero_point": False}, None, r"qzeros are not all 8, as zero_point false"),
    "no number": ({}, lambda t: t["scales"].fill_(torch.inf), r"down_proj\.scales holds numbers that are not finite"),
    "rounded rows": ({"act_bits": 8}, None, "act_bits is 8"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_means_no_matrix_is_refused_by_name(kind: str) -> None:
    config, change, message = REFUSED[kind]
    codes = some_codes(N, 4, groups_of(K, 64), symmetric=False)
    tensors = awq_tensors(codes, "gemm")
    if change is not None:
        change(tensors)
    with pytest.raises(Unsupported, match=message):
        read(codes, tensors, **config)


def test_a_method_says_what_it_is_and_how_large_it_will_be() -> None:
    shape = LinearShape(512, 256, torch.bfloat16)
    stored = {f"m.{kind}": Stored((8, 256), torch.float16) for kind in ("qweight", "scales")}
    method = Awq.from_checkpoint(PLAIN, stored).linear("m", shape)
    assert method.describe() == "AWQ 4 bit, group 64, asymmetric, layout gemm"
    assert method.weight_bytes(shape) == 256 * 512 // 2 + 8 * 256 * (2 + 1)
