"""GPTQ as AutoGPTQ, GPTQModel and optimum write it: the numbers are those of the codes, in every combination."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.models.loader import load_model
from aril.models.source import locate
from aril.quant.base import LinearShape, Stored
from aril.quant.formats.gptq import Gptq
from aril.quant.matrix import GroupedMatrix, Matrix
from builders.mixed import assert_mixed_batch_follows, plain_model
from builders.models import make_model
from builders.pages import differences
from builders.quantised import (
    Codes,
    Tensors,
    gptq_tensors,
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

BITS, GROUPS = (2, 3, 4, 8), (-1, 16, 32, 64, 128, 256)
N, K = 64, 320  # the last group of 128, and of 256, is half full
BY_GPTQMODEL = {"quantizer": ["gptqmodel:7.7.0"]}
RECORDED = ("agptq_w4_g64_descact_asym", "gptq_w3_g64_sym", "gptq_v2fmt_w4_g64_asym", "gptq_mixed_dynamic")


def config_of(bits: int, group: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "meta": BY_GPTQMODEL, **more}


def read(codes: Codes, tensors: Tensors, **more: Any) -> Matrix:
    return read_matrix(Gptq, config_of(codes.bits, more.pop("group", 64), **more), tensors, codes)


@pytest.mark.parametrize(("bits", "group"), list(product(BITS, GROUPS)))
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("order", ["", "act order", "static groups"])
@pytest.mark.parametrize("layout", ["gptq", "gptq_v2"])
def test_a_matrix_is_what_its_codes_are(bits: int, group: int, symmetric: bool, order: str, layout: str) -> None:
    codes = some_codes(N, bits, groups_of(K, group, order == "act order"), symmetric=symmetric)
    tensors = gptq_tensors(codes, less_one=layout == "gptq")
    flags = {"sym": symmetric, "desc_act": bool(order), "static_groups": order == "static groups"}
    found = read(codes, tensors, group=group, checkpoint_format=layout, **flags)
    assert torch.equal(found.dense(), codes.dense())


@pytest.mark.parametrize("bits", BITS)
def test_a_packed_matrix_multiplies_rows_as_its_dense_one(bits: int) -> None:
    codes = some_codes(N, bits, groups_of(K, 64, act_order=True), symmetric=False)
    found = read(codes, gptq_tensors(codes), desc_act=True)
    x = torch.randn(5, K)
    torch.testing.assert_close(found.product(torch.device("cpu"))(x), x @ codes.dense().t(), rtol=1e-4, atol=1e-4)


def test_the_zero_points_of_a_symmetric_matrix_are_one_number_and_its_order_is_kept_only_where_it_matters() -> None:
    codes = some_codes(N, 4, groups_of(K, 64), symmetric=True)
    found = read(codes, gptq_tensors(codes), sym=True, desc_act=True, static_groups=True)
    assert isinstance(found, GroupedMatrix)
    assert found.weight.zeros == 8
    assert found.weight.order is None


def test_scales_keep_the_dtype_in_which_they_are_stored() -> None:
    codes = some_codes(N, 4, groups_of(K, 64), symmetric=True)
    tensors = gptq_tensors(codes)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        found = read(codes, {**tensors, "scales": tensors["scales"].to(dtype)})
        assert isinstance(found, GroupedMatrix)
        assert found.weight.scales.fine.dtype == dtype


@pytest.mark.parametrize("index", ["none", "zeros"])
def test_files_from_before_act_order_have_no_index_or_one_of_zeros(index: str) -> None:
    codes = some_codes(N, 4, groups_of(K, 64), symmetric=False)
    tensors = gptq_tensors(codes)
    if index == "none":
        del tensors["g_idx"]
    else:
        tensors["g_idx"] = torch.zeros_like(tensors["g_idx"])
    assert torch.equal(read(codes, tensors).dense(), codes.dense())


# What a wrong reading would make of the same tensors: each differs, so that the tests above would fail with it.


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("stored", ["gptq", "gptq_v2"])
def test_the_other_convention_of_zero_points_gives_other_numbers(bits: int, stored: str) -> None:
    codes = some_codes(N, bits, groups_of(K, 64), symmetric=False)
    tensors = gptq_tensors(codes, less_one=stored == "gptq")
    other = {"gptq": "gptq_v2", "gptq_v2": "gptq"}[stored]
    assert differ(read(codes, tensors, checkpoint_format=other), codes) > 0.9


@pytest.mark.parametrize("bits", [2, 4])
def test_fields_from_the_high_end_of_a_word_give_other_numbers(bits: int) -> None:
    codes = some_codes(N, bits, groups_of(K, 64), symmetric=False)
    tensors = gptq_tensors(codes)
    backwards = stream(codes.values.unflatten(1, (-1, 32 // bits)).flip(2).flatten(1), bits)
    assert differ(read(codes, {**tensors, "qweight": backwards.t()}), codes) > 0.5


def test_a_dropped_index_gives_other_numbers() -> None:
    codes = some_codes(N, 4, groups_of(K, 64, act_order=True), symmetric=False)
    tensors = gptq_tensors(codes)
    del tensors["g_idx"]
    assert differ(read(codes, tensors), codes) > 0.5


def differ(found: Matrix, codes: Codes) -> float:
    """The share of weights that are not what the codes mean."""
    return float((found.dense() != codes.dense()).float().mean())


# Whole models.

MODELS: dict[str, dict[str, Any]] = {
    "4 bits in act order": {"bits": 4, "group": 32, "desc_act": True, "sym": False},
    "2 bits, as they are": {"bits": 2, "group": 16, "sym": False, "checkpoint_format": "gptq_v2"},
    "3 bits, symmetric": {"bits": 3, "group": 64, "sym": True},
    "8 bits in one group": {"bits": 8, "group": -1, "sym": True, "desc_act": True},
}


def gptq_model(folder: Path, base: Path, **more: Any) -> Tensors:
    """A checkpoint with every matrix of the layers packed; what they mean."""
    flags = {"bits": 4, "group": 32, "sym": False, **more}
    config = config_of(flags.pop("bits"), flags.pop("group"), **flags)

    def pack(name: str, weight: Tensor) -> tuple[Tensors, Tensor] | None:
        if name == "lm_head":
            return None
        index = groups_of(weight.shape[1], config["group_size"], bool(flags.get("desc_act")))
        codes = rounded(weight, config["bits"], index, symmetric=bool(flags["sym"]))
        return gptq_tensors(codes, less_one=flags.get("checkpoint_format") != "gptq_v2"), codes.dense()

    return make_quantised(folder, base, config, pack)


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_gives_the_logits_of_its_dequantised_weights(kind: str, tmp_path: Path) -> None:
    dense = gptq_model(tmp_path / "q", make_model(tmp_path / "base"), **MODELS[kind])
    assert len(dense) == 3 * 7
    assert differences(load(tmp_path / "q"), plain_model(tmp_path / "q", dense), lengths=(40, 7)) < 1e-4


@pytest.mark.parametrize("kind", ["4 bits in act order", "3 bits, symmetric"])
def test_two_adapters_and_the_base_in_one_batch_answer_as_peft(kind: str, tmp_path: Path) -> None:
    dense = gptq_model(tmp_path / "q", make_model(tmp_path / "base", num_hidden_layers=2), **MODELS[kind])
    assert_mixed_batch_follows(plain_model(tmp_path / "q", dense), tmp_path / "q", tmp_path)


def load(folder: Path) -> Any:
    return load_model(locate(str(folder)), dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize("name", RECORDED)
def test_a_real_checkpoint_answers_as_recorded(name: str) -> None:
    assert_answers_as_recorded(recorded(name))


@pytest.mark.parametrize("name", RECORDED)
def test_adapters_on_a_real_checkpoint_answer_as_peft(name: str, tmp_path: Path) -> None:
    folder = recorded(name)
    assert_mixed_batch_follows(plain_model(folder, read_by_hand(folder)), folder, tmp_path)


def test_a_method_says_what_it_is_and_how_large_it_will_be() -> None:
    shape = LinearShape(512, 256, torch.bfloat16)
    stored = {f"m.{kind}": Stored((4, 256), torch.float16) for kind in ("qweight", "scales")}
    method = Gptq.from_checkpoint(config_of(4, 128, sym=False, desc_act=True), stored).linear("m", shape)
    assert method.describe() == "GPTQ 4 bit, group 128, asymmetric, act order"
    assert method.weight_bytes(shape) == 256 * 512 // 2 + 4 * 256 * (2 + 1) + 8 * 512
