"""What a GPTQ checkpoint's config says in its many ways, and what is refused by name when it cannot be."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.core.errors import Unsupported
from aril.models.loader import load_model
from aril.models.source import locate
from aril.quant.formats.gptq import Gptq
from aril.quant.matrix import GroupedMatrix, Matrix
from builders.mixed import plain_model
from builders.models import make_model
from builders.pages import differences
from builders.quantised import (
    Codes,
    Tensors,
    gptq_tensors,
    groups_of,
    make_quantised,
    read_matrix,
    rounded,
    some_codes,
    values_of,
)
from safetensors.torch import load_file, save_file
from torch import Tensor

N, K = 64, 128
PLAIN = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}
Change = Callable[[Tensors], object]


def pack(name: str, weight: Tensor, *, bits: int = 4, group: int = 32) -> tuple[Tensors, Tensor] | None:
    codes = rounded(weight, bits, groups_of(weight.shape[1], group), symmetric=False)
    return None if name == "lm_head" else (gptq_tensors(codes), codes.dense())


def load(folder: Path) -> Any:
    return load_model(locate(str(folder)), dtype=torch.float32, device=torch.device("cpu"))


def follows(folder: Path, dense: Tensors) -> bool:
    return differences(load(folder), plain_model(folder, dense), lengths=(20,)) < 1e-4


def small(tmp_path: Path) -> Path:
    return make_model(tmp_path / "base", num_hidden_layers=1)


def test_the_config_may_stand_beside_config_json_alone(tmp_path: Path) -> None:
    dense = make_quantised(tmp_path / "q", small(tmp_path), None, pack, quantize_config=PLAIN)
    assert follows(tmp_path / "q", dense)


def test_what_one_file_leaves_out_the_other_says(tmp_path: Path) -> None:
    short = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    beside = {**PLAIN, "checkpoint_format": "gptq_v2"}

    def as_they_are(name: str, weight: Tensor) -> tuple[Tensors, Tensor] | None:
        codes = rounded(weight, 4, groups_of(weight.shape[1], 32), symmetric=False)
        return None if name == "lm_head" else (gptq_tensors(codes, less_one=False), codes.dense())

    assert follows(
        tmp_path / "q", make_quantised(tmp_path / "q", small(tmp_path), short, as_they_are, quantize_config=beside)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 8}, r"config\.json says bits 4, quantize_config\.json says 8"),
        ({"checkpoint_format": "gptq_v2"}, "checkpoint_format 'gptq', quantize_config.json says 'gptq_v2'"),
        ({"quant_method": "awq"}, "says quant_method 'gptq', quantize_config.json says 'awq'"),
    ],
)
def test_files_that_contradict_each_other_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = {**PLAIN, "checkpoint_format": "gptq"}
    make_quantised(tmp_path / "q", small(tmp_path), config, pack, quantize_config={**config, **change})
    with pytest.raises(Unsupported, match=message):
        load(tmp_path / "q")


MIXED = {
    "-:.*k_proj": {},
    "+:.*down_proj.*": {"bits": 8, "group_size": 16},
    r".*\.mlp\.": {"bits": 3, "group_size": 64},
}


def mixed(name: str, weight: Tensor) -> tuple[Tensors, Tensor] | None:
    if "k_proj" in name:
        return None
    if "down_proj" in name:
        return pack(name, weight, bits=8, group=16)
    return pack(name, weight, bits=3, group=64) if ".mlp." in name else pack(name, weight)


def test_the_first_expression_that_matches_gives_a_module_its_settings(tmp_path: Path) -> None:
    dense = make_quantised(tmp_path / "q", small(tmp_path), {**PLAIN, "dynamic": MIXED}, mixed)
    assert "model.layers.0.self_attn.k_proj" not in dense
    assert follows(tmp_path / "q", dense)
    linears = load(tmp_path / "q").linears
    told = {part.name.rpartition(".")[2]: part.method.describe() for part in linears["layers.0.gate_up"].arrivals}
    assert told["up_proj"] == "GPTQ 3 bit, group 64, asymmetric"


def test_the_order_of_expressions_is_that_of_the_file_whose_keys_are_not_sorted(tmp_path: Path) -> None:
    rules = {"-:.*k_proj": {}, "+:.*self_attn.*": {"bits": 8}}
    config = {**PLAIN, "dynamic": dict(sorted(rules.items()))}

    def attention(name: str, weight: Tensor) -> tuple[Tensors, Tensor] | None:
        return None if "k_proj" in name else pack(name, weight, bits=8 if "self_attn" in name else 4)

    beside = {**PLAIN, "dynamic": rules}
    dense = make_quantised(tmp_path / "q", small(tmp_path), config, attention, quantize_config=beside)
    assert follows(tmp_path / "q", dense)
    make_quantised(tmp_path / "more", small(tmp_path), config, pack, quantize_config=beside)
    with pytest.raises(Unsupported, match=r"k_proj\.qweight is stored, but .*dynamic '-:\.\*k_proj' leaves"):
        load(tmp_path / "more")


def test_a_module_that_the_config_names_may_be_plain_all_the_same(tmp_path: Path) -> None:
    config = {**PLAIN, "modules_in_block_to_quantize": [["self_attn.q_proj", "self_attn.k_proj"], ["mlp.up_proj"]]}

    def some(name: str, weight: Tensor) -> tuple[Tensors, Tensor] | None:
        return pack(name, weight) if name.endswith(("q_proj", "k_proj")) else None

    dense = make_quantised(tmp_path / "q", small(tmp_path), config, some)
    assert len(dense) == 2
    assert follows(tmp_path / "q", dense)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dynamic": {"-:.*up_proj": {}}}, r"mlp\.up_proj\.qweight is stored, but .*dynamic '-:\.\*up_proj' leaves"),
        (
            {"modules_in_block_to_quantize": ["mlp.up_proj"]},
            r"q_proj\.qweight is stored, but modules_in_block_to_quant",
        ),
    ],
)
def test_a_packed_module_that_the_config_leaves_alone_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_quantised(tmp_path / "q", small(tmp_path), {**PLAIN, **change}, pack)
    with pytest.raises(Unsupported, match=message):
        load(tmp_path / "q")


def test_a_quantised_head_is_read_and_a_denied_one_refused(tmp_path: Path) -> None:
    def all_of_it(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        codes = rounded(weight, 4, groups_of(weight.shape[1], 32), symmetric=False)
        return gptq_tensors(codes), codes.dense()

    base = small(tmp_path)
    dense = make_quantised(tmp_path / "q", base, {**PLAIN, "lm_head": True}, all_of_it)
    assert "lm_head" in dense
    assert follows(tmp_path / "q", dense)
    make_quantised(tmp_path / "denied", base, {**PLAIN, "lm_head": False}, all_of_it)
    with pytest.raises(Unsupported, match=r"lm_head\.qweight is stored, but lm_head false"):
        load(tmp_path / "denied")


def test_biases_of_zeros_that_autogptq_adds_are_no_biases_and_others_count(tmp_path: Path) -> None:
    def biased(name: str, weight: Tensor) -> tuple[Tensors, Tensor] | None:
        packed = pack(name, weight)
        return packed and ({**packed[0], "bias": torch.zeros(len(weight))}, packed[1])

    dense = make_quantised(tmp_path / "q", small(tmp_path), PLAIN, biased)
    assert follows(tmp_path / "q", dense)
    assert all(linear.bias is None for linear in load(tmp_path / "q").linears.values())
    base = make_model(tmp_path / "qwen", "qwen2", num_hidden_layers=1)
    assert follows(tmp_path / "q2", make_quantised(tmp_path / "q2", base, PLAIN, pack))


REFUSED: dict[str, tuple[dict[str, Any], Change | None, str]] = {
    "5 bits": ({"bits": 5}, None, "bits is 5; GPTQ is read with 2, 3, 4, 8"),
    "no bits": ({"bits": None}, None, "bits is missing"),
    "bits in words": ({"bits": "four"}, None, "bits is 'four'; it must be a whole number"),
    "no group": ({"group_size": 0}, None, "group_size is 0"),
    "planar": ({"checkpoint_format": "gptq_p"}, None, "checkpoint_format is 'gptq_p'; gptq and gptq_v2 are read"),
    "marlin": ({"checkpoint_format": "marlin"}, None, "checkpoint_format is 'marlin'"),
    "marlin of AutoGPTQ": ({"is_marlin_format": True}, None, "checkpoint_format is 'marlin'"),
    "words of 16 bits": ({"pack_dtype": "int16"}, None, "pack_dtype is 'int16'; int32 is read"),
    "rounded rows": ({"act_bits": 8}, None, "act_bits is 8"),
    "dynamic in 6 bits": ({"dynamic": {".*nobody": {"bits": 6}}}, None, "dynamic '.*nobody': bits is 6"),
    "no expression": ({"dynamic": {"+:(": {}}}, None, r"dynamic '\+:\(': '\(' is not a regular expression"),
    "no scales": ({}, lambda t: t.pop("scales"), "scales"),
    "stored twice": ({}, lambda t: t.update(weight=torch.ones(N, K)), "is stored twice: as qweight and as weight"),
    "neither": ({}, lambda t: t.pop("qweight"), "holds neither .*qweight nor .*weight"),
    "no number": ({}, lambda t: t["scales"].fill_(torch.nan), r"down_proj\.scales holds numbers that are not finite"),
    "a far group": ({}, lambda t: t["g_idx"][9:].fill_(4), r"g_idx: input 9 is in group 4; there are 0 to 3"),
    "a group below": ({}, lambda t: t["g_idx"][1:2].fill_(-1), r"g_idx: input 1 is in group -1"),
    "uneven groups": ({}, lambda t: t["g_idx"][:1].fill_(1), r"g_idx: group 0 holds 31 inputs instead of 32"),
    "one group of zeros in act order": ({"desc_act": True}, lambda t: t["g_idx"].zero_(), "group 0 holds 128"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_means_no_matrix_is_refused_by_name(kind: str) -> None:
    config, change, message = REFUSED[kind]
    codes = some_codes(N, 4, groups_of(K, 32), symmetric=False)
    tensors = gptq_tensors(codes)
    if change is not None:
        change(tensors)
    with pytest.raises((Unsupported, KeyError), match=message):
        read_matrix(Gptq, {**PLAIN, **config}, tensors, codes)


@pytest.mark.parametrize("stored", ["gptq", "gptq_v2"])
def test_a_symmetric_file_under_the_other_convention_is_refused(stored: str) -> None:
    codes = some_codes(N, 4, groups_of(K, 32), symmetric=True)
    other = {"gptq": "gptq_v2", "gptq_v2": "gptq"}[stored]
    with pytest.raises(Unsupported, match=r"qzeros mean [79] by the config's checkpoint_format; sym true makes them 8"):
        read(codes, gptq_tensors(codes, less_one=stored == "gptq"), sym=True, checkpoint_format=other)


def test_sizes_that_fill_no_words_are_refused() -> None:
    codes = some_codes(N, 3, groups_of(48, 16), symmetric=False)
    with pytest.raises(Unsupported, match="48 inputs of 3 bits; GPTQ packs multiples of 32"):
        read(codes, {"qweight": torch.zeros(1)}, bits=3)


def read(codes: Codes, tensors: Tensors, **more: Any) -> Matrix:
    return read_matrix(Gptq, {**PLAIN, **more}, tensors, codes)


def overwritten(zeros: Tensor, bits: int) -> Tensor:
    """Words as AutoGPTQ packs them: a zero point of 0 sets all bits of its word from its own on."""
    rows = []
    for row in zeros.tolist():
        words = [0] * (len(row) * bits // 32)
        for i, zero in enumerate(row):
            stored, (word, shift) = (zero - 1) & 0xFFFFFFFF, divmod(i * bits, 32)
            words[word] |= (stored << shift) & 0xFFFFFFFF
            if shift + bits > 32:
                words[word + 1] |= (stored >> (32 - shift)) & ((1 << (shift + bits - 32)) - 1)
        rows.append(words)
    return torch.tensor(rows).to(torch.uint32).view(torch.int32)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_lost_zero_points_are_read_as_autogptq_reads_them_and_told_once(bits: int, caplog: Any) -> None:
    codes = some_codes(N, bits, groups_of(K, 32), symmetric=False, lowest=1)
    codes.zeros[2, 1] = 0
    words = overwritten(codes.zeros, bits)
    with caplog.at_level(logging.WARNING):
        found = read(codes, {**gptq_tensors(codes), "qzeros": words}, bits=bits)
    by_autogptq = (values_of(words, bits) + 1) % (1 << bits)
    assert (by_autogptq[2] != codes.zeros[2]).sum() > 1
    assert isinstance(found, GroupedMatrix)
    assert isinstance(found.weight.zeros, Tensor)
    assert torch.equal(found.weight.zeros, by_autogptq.to(torch.uint8))
    [told] = [record.getMessage() for record in caplog.records]
    assert "zero_points_lost layers=model.layers.0.mlp.down_proj" in told


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("told_by", ["its name", "another zero point of 0"])
def test_a_zero_point_of_0_that_gptqmodel_stored_is_not_lost(bits: int, told_by: str, caplog: Any) -> None:
    codes = some_codes(N, bits, groups_of(K, 32), symmetric=False, lowest=1)
    codes.zeros[1, 24:32] = torch.tensor([2, 0, 1, 1, 2, 0, 1, 1])  # the ends of words as after a loss
    more = {"meta": {"quantizer": ["optimum:2.0", "gptqmodel:7.7.0"]}} if told_by == "its name" else {}
    if not more:
        codes.zeros[0, :2] = torch.tensor([0, 3])  # AutoGPTQ would have set all bits of the second
    with caplog.at_level(logging.WARNING):
        found = read(codes, gptq_tensors(codes), bits=bits, **more)
    assert torch.equal(found.dense(), codes.dense())
    assert not caplog.records


def test_every_module_of_a_model_that_lost_zero_points_is_named_in_one_warning(tmp_path: Path, caplog: Any) -> None:
    make_quantised(tmp_path, small(tmp_path), PLAIN, pack)
    tensors = load_file(tmp_path / "model.safetensors")
    hurt = [f"model.layers.0.{name}" for name in ("self_attn.v_proj", "mlp.gate_proj")]
    for name in hurt:
        tensors[f"{name}.qzeros"][0, 1] = -1
    save_file(tensors, tmp_path / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        load(tmp_path)
    [told] = [record.getMessage() for record in caplog.records if "zero_points_lost" in record.getMessage()]
    assert f"layers='{', '.join(hurt)}'" in told
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"] == PLAIN
