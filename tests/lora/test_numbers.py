"""What a Delta adds equals what PEFT adds, for every way a configuration can say what an adapter is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from aril.lora.manager import LoraManager
from builders.adapters import make_adapter, with_adapter

from .conftest import AdaptedLinear, Shelf, acquire, make_manager

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"targets": ("q_proj", "v_proj")},
    "alpha": {"targets": ("q_proj",), "lora_alpha": 3},
    "rslora": {"targets": ("k_proj", "o_proj"), "use_rslora": True},
    "rank_pattern": {"targets": ("q_proj", "down_proj"), "rank_pattern": {r"layers\.1\..*q_proj": 3, "down_proj": 17}},
    "alpha_pattern": {"targets": ("q_proj", "up_proj"), "alpha_pattern": {"up_proj": 5, "^model.layers.2.*": 31}},
    "rslora_patterns": {
        "targets": ("v_proj",),
        "use_rslora": True,
        "rank_pattern": {"v_proj": 5},
        "alpha_pattern": {"v_proj": 9},
    },
    "all_linear": {"targets": "all-linear", "r": 4},
    "regex": {"targets": r".*\.(0|2)\..*(gate|down)_proj"},
    "layers": {"targets": ("q_proj", "gate_proj"), "layers_to_transform": [0, 2]},
    "layers_pattern": {"targets": ("q_proj",), "layers_to_transform": 1, "layers_pattern": "layers"},
    "exclude_names": {"targets": ("q_proj", "v_proj"), "exclude_modules": ["layers.1.self_attn.q_proj"]},
    "exclude_regex": {"targets": ("q_proj", "v_proj"), "exclude_modules": r".*\.0\..*"},
    "rank_1": {"targets": ("o_proj",), "r": 1},
    "bfloat16_file": {"targets": ("o_proj", "q_proj"), "dtype": torch.bfloat16},
    "float16_file": {"targets": "all-linear", "dtype": torch.float16},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_delta_adds_what_peft_adds(
    config: dict[str, Any], tmp_path: Path, base: Path, loaded: Any, linears: dict[str, AdaptedLinear]
) -> None:
    folder = make_adapter(tmp_path / "adapter", loaded, **config)
    shelf = Shelf()
    manager = make_manager(shelf, linears)
    slot = acquire(manager, shelf.put(folder))
    assert slot is not None
    oracle = with_adapter(base, folder).base_model.model
    for linear in linears.values():
        x = torch.randn(5, linear.in_features)
        torch.testing.assert_close(added(manager, linear, x, [slot] * 5), peft_adds(oracle, linear, x))


def test_mixed_ranks_and_targets_and_rows_without_an_adapter_share_one_call(
    tmp_path: Path, base: Path, loaded: Any, linears: dict[str, AdaptedLinear]
) -> None:
    shelf = Shelf()
    manager = make_manager(shelf, linears)
    folders = [
        make_adapter(tmp_path / name, loaded, seed=seed, **CONFIGS[name])
        for seed, name in enumerate(("plain", "rank_pattern", "all_linear"))
    ]
    slots = [acquire(manager, shelf.put(folder)) for folder in folders]
    oracles = [with_adapter(base, folder).base_model.model for folder in folders]
    order = [2, None, 0, 1, 1, None, 2, 0]
    for linear in linears.values():
        x = torch.randn(len(order), linear.in_features)
        y = added(manager, linear, x, [0 if at is None else slots[at] for at in order])
        for row, at in enumerate(order):
            expected = torch.zeros_like(y[row]) if at is None else peft_adds(oracles[at], linear, x[row : row + 1])[0]
            torch.testing.assert_close(y[row], expected)


def added(manager: LoraManager, linear: AdaptedLinear, x: torch.Tensor, slots: list[int]) -> torch.Tensor:
    """What the hook adds to zeros."""
    y = torch.zeros(len(x), sum(part.size for part in linear.parts))
    assert linear.delta is not None
    linear.delta.add_(y, x, manager.rows(slots))
    return y


def peft_adds(oracle: Any, linear: AdaptedLinear, x: torch.Tensor) -> torch.Tensor:
    """PEFT's output minus the base layer's, part by part."""
    modules = [oracle.get_submodule(part.name) for part in linear.parts]
    with torch.no_grad():
        return torch.cat([m(x) - m.base_layer(x) if hasattr(m, "lora_A") else 0 * m(x) for m in modules], dim=1)
