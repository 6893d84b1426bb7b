"""Whole models in compressed-tensors and fp8: logits of the dequantised weights under rounded inputs, adapters on top.

Where inputs are rounded, a last bit that another order of adding up changes can become a step, which moves all that
follows. So many short rows are compared, of which few meet one: the typical row must agree to the usual digits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.models.base import Decoder
from aril.models.loader import load_model
from aril.models.source import locate
from builders.compressed import Made, args, config, float8, group, integers, mxfp4, nvfp4, packed, unpacked
from builders.mixed import assert_mixed_batch_follows, plain_model
from builders.models import make_model
from builders.pages import Pages, differences, some_tokens
from builders.quantised import Tensors, make_quantised
from builders.rounded import Rounding, fp8_groups, fp8_tokens, int8_tokens, rounded_inputs, rounding_cache, to_fp8
from safetensors.torch import load_file, save_file
from torch import Tensor

EXACT, STEPS, WRONG = 1e-4, 0.1, 0.1  # of logits: as usual, with some steps, without the roundings
INT4, INT8, FP8 = args(4, "int", "group", group_size=32), args(8), args(8, "float", "channel")
TOKENS, FP8_TOKENS = args(8, "int", "token", dynamic=True), args(8, "float", "token", dynamic=True)
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 48]}
STATIC = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}


@dataclass(frozen=True)
class Kind:
    """A config, how each module's weight is stored under it, and what becomes of its inputs (None = nothing)."""

    said: dict[str, Any]
    store: Callable[[str, Tensor], Made | None]
    rounding: Callable[[str], Rounding | None] = lambda name: None


def last(name: str) -> str:
    return name.rpartition(".")[2]


def calibrated(name: str) -> Tensor:
    """A scale of inputs that no two modules share."""
    return torch.tensor(0.02 + sum(map(ord, name)) % 97 / 1e4, dtype=torch.float32)


def static(name: str, weight: Tensor) -> Made:
    made = float8(weight, *weight.shape)
    return Made({**made.tensors, "input_scale": calibrated(name)}, made.dense)


def mixed(name: str, weight: Tensor) -> Made | None:
    if last(name) in ("q_proj", "o_proj"):
        return packed(integers(weight, 4, 32, symmetric=False), symmetric=False)
    if last(name) in ("k_proj", "gate_proj"):
        return unpacked(integers(weight, 8))
    return float8(weight, 1, weight.shape[1], dtype=torch.bfloat16) if last(name) == "v_proj" else None


def mixed_rounding(name: str) -> Rounding | None:
    return {"k_proj": int8_tokens, "gate_proj": int8_tokens, "v_proj": fp8_tokens}.get(last(name))


MIXED = config(
    "mixed-precision",
    {**group({**INT4, "symmetric": False}, format="pack-quantized"), "targets": [r"re:.*\.(q|o)_proj$"]},
    {**group(INT8, TOKENS, format="int-quantized"), "targets": ["re:.*k_proj", "re:.*gate_proj"]},
    {**group(FP8, FP8_TOKENS, format="float-quantized"), "targets": ["re:.*v_proj"]},
)
WEIGHTS_ONLY = {
    "int4 in groups": Kind(config("pack-quantized", group(INT4)), lambda _, w: packed(integers(w, 4, 32))),
    "int3, padded": Kind(
        config("pack-quantized", group(args(3)), version="0.17.0"), lambda _, w: packed(integers(w, 3), padded=True)
    ),
    "int8 per output": Kind(config("pack-quantized", group(INT8)), lambda _, w: packed(integers(w, 8))),
    "e4m3": Kind(config("naive-quantized", group(FP8)), lambda _, w: float8(w, 1, w.shape[1], dtype=torch.bfloat16)),
    "nvfp4": Kind(
        config("nvfp4-pack-quantized", group(args(4, "float", "tensor_group", group_size=16))), lambda _, w: nvfp4(w)
    ),
    "mxfp4": Kind(
        config("mxfp4-pack-quantized", group(args(4, "float", "group", group_size=32, scale_dtype="torch.uint8"))),
        lambda _, w: mxfp4(w),
    ),
    "a quantised head": Kind(config("pack-quantized", group(INT4), ignore=[]), lambda _, w: packed(integers(w, 4, 32))),
}
ROUNDED = {
    "W8A8": Kind(
        config("int-quantized", group(INT8, TOKENS)), lambda _, w: unpacked(integers(w, 8)), lambda _: int8_tokens
    ),
    "W4A8": Kind(
        config("int-quantized", group(INT4, TOKENS)), lambda _, w: unpacked(integers(w, 4, 32)), lambda _: int8_tokens
    ),
    "fp8 of rows": Kind(
        config("float-quantized", group(FP8, FP8_TOKENS)), lambda _, w: float8(w, 1, w.shape[1]), lambda _: fp8_tokens
    ),
    "fp8 in blocks": Kind(BLOCKS, lambda _, w: float8(w, 32, 48, name="weight_scale_inv"), lambda _: fp8_groups(48)),
    "fp8, calibrated": Kind(STATIC, static, lambda name: lambda x: to_fp8(x, calibrated(name))),
    "three schemes": Kind(MIXED, mixed, mixed_rounding),
}
KINDS = {**WEIGHTS_ONLY, **ROUNDED}


def make(folder: Path, kind: Kind, **overrides: Any) -> Any:
    """A checkpoint of that kind in `folder`/q; the transformers model that it means."""
    heads = kind.said.get("ignore") == []

    def pack(name: str, weight: Tensor) -> tuple[Tensors, Tensor] | None:
        made = kind.store(name, weight) if name != "lm_head" or heads else None
        return None if made is None else (made.tensors, made.dense)

    dense = make_quantised(folder / "q", make_model(folder / "base", **overrides), kind.said, pack)
    return rounded_inputs(plain_model(folder / "q", dense), {name: kind.rounding(name) for name in dense})


def typical_difference(decoder: Decoder, reference: Any) -> float:
    """The median of the rows' largest differences."""
    rows = {str(at): some_tokens(6, seed=at) for at in range(25)}
    found = Pages(decoder).run(rows)
    with torch.no_grad():
        expected = reference(torch.tensor(list(rows.values()))).logits
    each = [(found[row] - logits).abs().max() for row, logits in zip(rows, expected, strict=True)]
    return float(torch.stack(each).median())


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return load_model(locate(str(folder)), dtype=dtype, device=torch.device("cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_gives_the_logits_of_its_dequantised_weights_and_rounded_inputs(kind: str, tmp_path: Path) -> None:
    model, found = make(tmp_path, KINDS[kind]), load(tmp_path / "q")
    assert typical_difference(found, model) < EXACT
    assert differences(found, model, lengths=(40, 33)) < (EXACT if kind in WEIGHTS_ONLY else STEPS)


@pytest.mark.parametrize("kind", ROUNDED)
def test_inputs_that_are_not_rounded_give_other_logits(kind: str, tmp_path: Path) -> None:
    model = make(tmp_path, KINDS[kind])
    for module in model.modules():
        module._forward_pre_hooks.clear()
    assert typical_difference(load(tmp_path / "q"), model) > WRONG


@pytest.mark.parametrize(
    "kind", ["int4 in groups", "nvfp4", "W8A8", "fp8 in blocks", "fp8, calibrated", "three schemes"]
)
def test_two_adapters_and_the_base_in_one_batch_answer_as_peft(kind: str, tmp_path: Path) -> None:
    model = make(tmp_path, KINDS[kind], num_hidden_layers=2)
    tolerance = 2e-3 if kind in WEIGHTS_ONLY else STEPS
    assert_mixed_batch_follows(model, tmp_path / "q", tmp_path, tolerance=tolerance)


@pytest.mark.parametrize("scheme", ["kv_cache_scheme", "fp8"])
def test_keys_and_values_are_rounded_by_the_scales_of_the_cache(scheme: str, tmp_path: Path) -> None:
    kind = WEIGHTS_ONLY["int4 in groups"] if scheme == "kv_cache_scheme" else ROUNDED["fp8 in blocks"]
    said = {**kind.said, "kv_cache_scheme": args(8, "float", "tensor")} if scheme == "kv_cache_scheme" else kind.said
    model = make(tmp_path, Kind(said, kind.store, kind.rounding))
    file = tmp_path / "q" / "model.safetensors"
    scales = {
        f"model.layers.{at}.self_attn.{which}_scale": torch.tensor([0.01 + at / 99])
        for at in range(3)
        for which in "kv"
    }
    save_file({**load_file(file), **scales}, file, metadata={"format": "pt"})
    assert typical_difference(load(tmp_path / "q"), model) > WRONG
    model.config._attn_implementation = rounding_cache(scales)
    assert typical_difference(load(tmp_path / "q"), model) < EXACT


def test_bfloat16_serves_the_same_model(tmp_path: Path) -> None:
    model = make(tmp_path, ROUNDED["three schemes"])
    found = differences(load(tmp_path / "q", torch.bfloat16), model, lengths=(40,))
    assert found < 1.0, json.dumps(found)
