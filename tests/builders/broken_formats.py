"""Quantised checkpoints whose tensors contradict each other, or their config."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from builders.broken import (
    CT_GROUP,
    MODULE,
    Broken,
    config,
    edit_json,
    file,
    other,
    quantised,
    spoilt,
    tensors,
    without,
)

NAN, INFINITY = float("nan"), float("inf")
AWQ_BESIDE = json.dumps({"quant_method": "awq", "bits": 4, "group_size": 32})


def _narrower(tensor: Tensor) -> Tensor:
    return tensor[:, :-1]


def _shorter(tensor: Tensor) -> Tensor:
    return tensor[:-1]


def _crowded(index: Tensor) -> Tensor:
    """One group has more inputs than its size, another fewer."""
    return torch.where(index == 1, 0, index).to(torch.int32)


def _plain_again(found: dict[str, Tensor]) -> None:
    """A module holds packed weights and plain ones."""
    found[f"{MODULE}.weight"] = torch.zeros(64, 160)


def _not_said(folder: Path) -> None:
    edit_json(folder / "config.json", lambda found: found.pop("quantization_config"))


def _ct_weights(**changes: Any) -> dict[str, Any]:
    """The config group with other settings of its weights."""
    return {"group_0": {**CT_GROUP, "weights": {**CT_GROUP["weights"], **changes}}}


def _claiming(**changes: Any) -> Callable[[Tensor], Tensor]:
    """A quant_state of bitsandbytes that says something else."""

    def change(state: Tensor) -> Tensor:
        said = {**json.loads(bytes(state.tolist())), **changes}
        return torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)

    return change


GPTQ = {
    "gptq: no scales": Broken("gptq", without("scales"), (f"{MODULE}.scales",)),
    "gptq: no qweight": Broken("gptq", without("qweight"), (MODULE,)),
    "gptq: no qzeros": Broken("gptq", without("qzeros"), (f"{MODULE}.qzeros",)),
    "gptq: act order without g_idx": Broken("gptq", without("g_idx"), (f"{MODULE}.g_idx",)),
    "gptq: g_idx beyond the groups": Broken("gptq", spoilt("g_idx", 5), (f"{MODULE}.g_idx",)),
    "gptq: g_idx far beyond the groups": Broken("gptq", spoilt("g_idx", 2**31 - 1), (f"{MODULE}.g_idx",)),
    "gptq: g_idx below zero": Broken("gptq", spoilt("g_idx", -1), (f"{MODULE}.g_idx",)),
    "gptq: g_idx with a crowded group": Broken("gptq", other("g_idx", _crowded), (f"{MODULE}.g_idx",)),
    "gptq: g_idx too short": Broken("gptq", other("g_idx", _shorter), (f"{MODULE}.g_idx",)),
    "gptq: g_idx of another type": Broken("gptq", other("g_idx", Tensor.float), (f"{MODULE}.g_idx", "float32")),
    "gptq: words of another type": Broken("gptq", other("qweight", Tensor.float), (f"{MODULE}.qweight", "float32")),
    "gptq: scales of another type": Broken("gptq", other("scales", Tensor.int), (f"{MODULE}.scales", "int32")),
    "gptq: a scale that is no number": Broken("gptq", spoilt("scales", NAN), (f"{MODULE}.scales",)),
    "gptq: a scale without end": Broken("gptq", spoilt("scales", INFINITY), (f"{MODULE}.scales",)),
    "gptq: words too few": Broken("gptq", other("qweight", _shorter), (f"{MODULE}.qweight",)),
    "gptq: no words": Broken("gptq", other("qweight", lambda t: t[:0]), (f"{MODULE}.qweight",)),
    "gptq: zero points too few": Broken("gptq", other("qzeros", _narrower), (f"{MODULE}.qzeros",)),
    "gptq: bits that the shapes deny": Broken("gptq", quantised(bits=8), ("qweight",)),
    "gptq: bits that are not read": Broken("gptq", quantised(bits=7), ("bits", "7")),
    "gptq: bits that are no number": Broken("gptq", quantised(bits="four"), ("bits", "four")),
    "gptq: a group that does not divide": Broken("gptq", quantised(group_size=48), ("qzeros", "scales")),
    "gptq: a group of nothing": Broken("gptq", quantised(group_size=0), ("group_size", "0")),
    "gptq: a group below nothing": Broken("gptq", quantised(group_size=-7), ("group_size", "-7")),
    "gptq: another checkpoint_format": Broken("gptq", quantised(checkpoint_format="gptq_v9"), ("format", "gptq_v9")),
    "gptq: words of 16 bits": Broken("gptq", quantised(pack_dtype="int16"), ("pack_dtype", "int16")),
    "gptq: a rule that is no expression": Broken("gptq", quantised(dynamic={"+:(": {"bits": 8}}), ("dynamic",)),
    "gptq: a rule of other bits": Broken("gptq", quantised(dynamic={"+:.*down": {"bits": 8}}), (f"{MODULE}.qweight",)),
    "gptq: packed though a rule skips it": Broken("gptq", quantised(dynamic={"-:.*down": {}}), ("dynamic", "down")),
    "gptq: packed and plain at once": Broken("gptq", tensors(_plain_again), (MODULE, "twice")),
    "two formats, beside config.json": Broken("gptq", file("quantize_config.json", AWQ_BESIDE), ("awq", "gptq")),
    "two formats, within config.json": Broken(
        "gptq", config(compression_config={"quant_method": "compressed-tensors"}), ("compression_config",)
    ),
    "two formats, by the flag": Broken(
        "gptq", lambda folder: None, ("--quantization awq", "gptq"), {"quantization": "awq"}
    ),
    "another format than is stored": Broken("gptq", quantised(quant_method="awq"), (MODULE.split(".", maxsplit=1)[0],)),
    "a format that nobody knows": Broken("gptq", quantised(quant_method="magic"), ("magic",)),
    "packed though nothing is said": Broken("gptq", _not_said, (f"{MODULE}.weight",)),
}
AWQ = {
    "awq: no zero points": Broken("awq", without("qzeros"), (f"{MODULE}.qzeros",)),
    "awq: no scales": Broken("awq", without("scales"), (f"{MODULE}.scales",)),
    "awq: a scale that is no number": Broken("awq", spoilt("scales", NAN), (f"{MODULE}.scales",)),
    "awq: bits that are not read": Broken("awq", quantised(bits=3), ("bits", "3")),
    "awq: a group that does not divide": Broken("awq", quantised(group_size=48), ("model.layers.0", "48")),
    "awq: another group than is stored": Broken("awq", quantised(group_size=16), ("scales", "qzeros")),
    "awq: another version": Broken("awq", quantised(version="gemx"), ("version", "gemx")),
    "awq: the layout of another version": Broken("awq", quantised(version="gemv"), ("qweight",)),
    "awq: words of another type": Broken("awq", other("qweight", Tensor.short), (f"{MODULE}.qweight", "int16")),
}
FP8 = {
    "fp8: no scale": Broken("fp8", without("weight_scale"), (f"{MODULE}.weight_scale",)),
    "fp8: a scale that is no number": Broken("fp8", spoilt("weight_scale", NAN), (f"{MODULE}.weight_scale",)),
    "fp8: a scale of another shape": Broken(
        "fp8", other("weight_scale", lambda t: t.repeat(3)), (f"{MODULE}.weight_scale",)
    ),
    "fp8: integers for weights": Broken("fp8", other("weight", Tensor.char), (f"{MODULE}.weight", "int8")),
    "fp8: a weight that is no number": Broken("fp8", spoilt("weight", NAN), (f"{MODULE}.weight",)),
    "fp8: static inputs without a scale": Broken("fp8", quantised(activation_scheme="static"), ("input_scale",)),
    "fp8: another activation_scheme": Broken("fp8", quantised(activation_scheme="wild"), ("activation_scheme", "wild")),
    "fp8: blocks that are no pair": Broken("fp8", quantised(weight_block_size=[128]), ("weight_block_size",)),
    "fp8: blocks though there are none": Broken("fp8", quantised(weight_block_size=[128, 128]), ("weight_scale",)),
}
CT = {
    "ct: no packed words": Broken("ct", without("weight_packed"), (MODULE,)),
    "ct: no scale": Broken("ct", without("weight_scale"), (f"{MODULE}.weight_scale",)),
    "ct: a shape that is not the weight's": Broken("ct", spoilt("weight_shape", 63), (f"{MODULE}.weight_shape",)),
    "ct: a scale that is no number": Broken("ct", spoilt("weight_scale", NAN), (f"{MODULE}.weight_scale",)),
    "ct: asymmetric without zero points": Broken(
        "ct", quantised(config_groups=_ct_weights(symmetric=False)), ("weight_zero_point",)
    ),
    "ct: bits that the shapes deny": Broken("ct", quantised(config_groups=_ct_weights(num_bits=8)), ("weight_packed",)),
    "ct: bits that are not read": Broken(
        "ct", quantised(config_groups=_ct_weights(num_bits=11)), ("weights", "11-bit")
    ),
    "ct: a group that does not divide": Broken(
        "ct", quantised(config_groups=_ct_weights(group_size=48)), ("weight_scale",)
    ),
    "ct: another strategy": Broken(
        "ct", quantised(config_groups=_ct_weights(strategy="spiral")), ("strategy", "spiral")
    ),
    "ct: another format": Broken("ct", quantised(format="pack-nothing"), ("pack-nothing",)),
    "ct: no groups": Broken("ct", quantised(config_groups={}), ("config_groups",)),
    "ct: groups that are a list": Broken("ct", quantised(config_groups=[1]), ("config_groups",)),
    "ct: a target that is no expression": Broken(
        "ct", quantised(config_groups={"group_0": {**CT_GROUP, "targets": ["re:("]}}), ("config_groups.group_0",)
    ),
    "ct: packed though it is ignored": Broken("ct", quantised(ignore=["lm_head", MODULE]), (MODULE,)),
}
STATE = "weight.quant_state.bitsandbytes__nf4"
BNB = {
    "bnb: no absmax": Broken("bnb", without("weight.absmax"), (f"{MODULE}.weight.absmax",)),
    "bnb: no quant_state": Broken("bnb", without(STATE), (MODULE,)),
    "bnb: a quant_state that is not JSON": Broken("bnb", other(STATE, lambda t: t[1:]), (f"{MODULE}.{STATE}",)),
    "bnb: an absmax that is no number": Broken("bnb", spoilt("weight.absmax", NAN), (f"{MODULE}.weight.absmax",)),
    "bnb: bytes too few": Broken("bnb", other("weight", _shorter), (f"{MODULE}.weight",)),
    "bnb: another quant_type": Broken("bnb", other(STATE, _claiming(quant_type="nf5")), (f"{MODULE}", "nf5")),
    "bnb: another blocksize": Broken("bnb", other(STATE, _claiming(blocksize=7)), (f"{MODULE}.weight.absmax",)),
    "bnb: the shape of another matrix": Broken("bnb", other(STATE, _claiming(shape=[64, 64])), (f"{MODULE}", "64")),
}
FORMATS = {**GPTQ, **AWQ, **FP8, **CT, **BNB}
