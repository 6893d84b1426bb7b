"""The norm of an update is that of the product multiplied out, at any size, and nothing is exactly nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from aril.lora.magnitudes import Magnitudes, measure, norm
from aril.lora.validate import TargetSpec, open_adapter
from aril.lora.weights import Pair
from builders.adapters import make_adapter, with_adapter


def test_norms_are_those_of_the_products_that_peft_adds(
    base: Path, loaded: Any, targets: TargetSpec, tmp_path: Path
) -> None:
    folder = make_adapter(tmp_path / "adapter", loaded, r=4, rank_pattern={"v_proj": 2}, use_rslora=True)
    with open_adapter(folder, targets) as adapter:
        ours = measure(adapter).norms
    peft = with_adapter(base, folder)
    theirs = {
        path: float(peft.get_submodule(f"base_model.model.{path}").get_delta_weight("default").norm()) for path in ours
    }
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e30])
def test_no_size_is_lost_to_squares(size: float) -> None:
    pair = Pair(torch.full((2, 3), size), torch.full((2, 5), 1.0))
    assert norm(pair) == pytest.approx(2 * size * 15**0.5, rel=1e-5)


@pytest.mark.parametrize("pair", [Pair(torch.ones(2, 3), torch.zeros(2, 5)), Pair(torch.zeros(2, 3), torch.ones(2, 5))])
def test_half_of_a_pair_at_zero_is_nothing(pair: Pair) -> None:
    assert norm(pair) == 0.0
    assert Magnitudes({"q": norm(pair)}).is_nothing


def test_a_report_names_the_largest_and_those_without_effect() -> None:
    said = Magnitudes({"a": 1.0, "b": 3.0, "c": 0.0}).said()
    assert (said["largest"], said["median"], said["without_effect"]) == (3.0, 1.0, 1)
    assert (said["largest_at"], said["without_effect_at"]) == (["b", "a", "c"], ["c"])
