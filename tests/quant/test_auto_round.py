"""auto-round's files: the layout that its packing_format names, the settings that extra_config gives to modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from aril.core.errors import Unsupported
from aril.models.loader import load_model
from aril.models.source import locate
from aril.quant.formats.auto_round import AutoRound
from builders.mixed import plain_model
from builders.models import make_model
from builders.pages import differences
from builders.quantised import (
    Tensors,
    awq_tensors,
    gptq_tensors,
    groups_of,
    make_quantised,
    read_matrix,
    rounded,
    some_codes,
)
from torch import Tensor

PLAIN = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, "data_type": "int", "iters": 0}


@pytest.mark.parametrize(
    ("said", "less_one"),
    [
        ({"packing_format": "auto_round:auto_gptq"}, True),
        ({"packing_format": "auto_round:gptqmodel"}, False),
        ({"packing_format": "auto_round"}, False),
        ({"backend": "auto_round:gptq:exllamav2"}, True),
        ({"backend": "auto_round:exllamav2"}, False),
        ({}, True),
    ],
)
def test_the_packing_format_tells_how_zero_points_are_stored(said: dict[str, str], less_one: bool) -> None:
    codes = some_codes(64, 4, groups_of(128, 32), symmetric=False)
    tensors = gptq_tensors(codes, less_one=less_one)
    del tensors["g_idx"]
    assert torch.equal(read_matrix(AutoRound, {**PLAIN, **said}, tensors, codes).dense(), codes.dense())


def test_awq_layouts_are_read_as_awq() -> None:
    codes = some_codes(64, 4, groups_of(128, 32), symmetric=False)
    config = {**PLAIN, "packing_format": "auto_round:auto_awq"}
    assert torch.equal(read_matrix(AutoRound, config, awq_tensors(codes, "gemm"), codes).dense(), codes.dense())


@pytest.mark.parametrize("method", ["auto-round", "intel/auto-round"])
def test_modules_have_the_settings_of_extra_config(method: str, tmp_path: Path) -> None:
    extra = {
        ".*mlp.*": {"bits": 8},
        "model.layers.0.mlp.up_proj": {"bits": 2, "group_size": 16, "sym": None},
        "v_proj$": {"bits": 16, "act_bits": 16},
    }

    def pack(name: str, weight: Tensor) -> tuple[Tensors, Tensor] | None:
        if name == "lm_head" or "v_proj" in name:
            return None
        bits, group = (2, 16) if name.endswith("0.mlp.up_proj") else (8 if ".mlp." in name else 4, 32)
        codes = rounded(weight, bits, groups_of(weight.shape[1], group), symmetric=False)
        return gptq_tensors(codes), codes.dense()

    config = {**PLAIN, "quant_method": method, "extra_config": extra}
    dense = make_quantised(tmp_path / "q", make_model(tmp_path / "base", num_hidden_layers=2), config, pack)
    decoder = load_model(locate(str(tmp_path / "q")), dtype=torch.float32, device=torch.device("cpu"))
    assert differences(decoder, plain_model(tmp_path / "q", dense), lengths=(20,)) < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"packing_format": "auto_round:llm_compressor"}, "packing_format is 'auto_round:llm_compressor'; auto_round,"),
        ({"data_type": "mx_fp"}, "data_type is 'mx_fp'; int is read"),
        ({"act_bits": 8}, "act_bits is 8; activations in 16 bits are served"),
        ({"rotation_config": {"block_size": 32}}, "rotation_config asks for rows that are rotated"),
        ({"extra_config": {"lm_head": 4}}, "extra_config 'lm_head' holds 4"),
    ],
)
def test_other_schemes_of_auto_round_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        AutoRound.from_checkpoint({**PLAIN, **change}, {})
