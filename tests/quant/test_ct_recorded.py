"""What llm-compressor wrote, and a checkpoint in DeepSeek's layout: answers as recorded, with adapters as PEFT's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from builders.mixed import assert_mixed_batch_follows, plain_model
from builders.quantised import values_of
from builders.recorded import TOLERANCE, assert_answers_as_recorded, assert_foretells_as_recorded, recorded
from builders.rounded import Rounding, fp8_groups, int8_tokens, rounded_inputs, rounding_cache, to_fp8
from safetensors.torch import load_file
from torch import Tensor

ALIKE = {"ct_w4a16_g32_asym_awq": "exact"}
ROUNDED = {"ct_int8_w8a8_dyn": "exact", "ct_fp8_static_tensor_kv": "exact_fp8_kv", "fp8_block128": "exact"}
STEPS = 0.5  # of log-probabilities, where a step of a rounding of this size has moved what follows


@pytest.mark.parametrize("name", ALIKE)
def test_a_real_checkpoint_answers_as_recorded(name: str) -> None:
    assert_answers_as_recorded(recorded(name), ALIKE[name])


@pytest.mark.parametrize("name", ROUNDED)
def test_a_real_checkpoint_of_rounded_inputs_foretells_as_recorded(name: str) -> None:
    assert_foretells_as_recorded(recorded(name), ROUNDED[name])


@pytest.mark.parametrize("name", [*ALIKE, *ROUNDED])
def test_adapters_on_a_real_checkpoint_answer_as_peft(name: str, tmp_path: Path) -> None:
    folder = recorded(name)
    tensors = load_file(folder / "model.safetensors")
    dense, roundings = read_by_hand(tensors)
    model = rounded_inputs(plain_model(folder, dense), roundings)
    if name.endswith("_kv"):
        model.config._attn_implementation = rounding_cache(tensors)
    tolerance = STEPS if any(roundings.values()) else TOLERANCE
    assert_mixed_batch_follows(model, folder, tmp_path, tolerance=tolerance)


def read_by_hand(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Rounding | None]]:
    """The weights and the roundings of inputs of those four, by module path."""
    names = {name.rpartition(".")[0] for name in tensors if ".weight_scale" in name}
    found = {name: _by_hand(name, tensors) for name in names}
    return {name: each[0] for name, each in found.items()}, {name: each[1] for name, each in found.items()}


def _by_hand(name: str, tensors: dict[str, Tensor]) -> tuple[Tensor, Rounding | None]:
    def of(suffix: str) -> Any:
        return tensors.get(f"{name}.{suffix}")

    if of("weight_packed") is not None:
        n, k = of("weight_shape").tolist()
        values = values_of(of("weight_packed"), 4)
        zeros = values_of(of("weight_zero_point").t().contiguous(), 4).t()
        groups = torch.arange(k) // (k // zeros.shape[1])
        return (values - zeros[:n, groups]) * of("weight_scale").float()[:, groups], None
    weight = of("weight").float()
    if of("weight_scale_inv") is not None:
        rows, columns = (torch.arange(size) // 128 for size in weight.shape)
        return weight * of("weight_scale_inv")[rows][:, columns], fp8_groups(128)
    scale = of("input_scale")
    rounding = int8_tokens if scale is None else lambda x: to_fp8(x, scale.float())
    return weight * of("weight_scale").float(), rounding
