"""compressed-tensors, by its config: which scheme a module has, and what is refused before a weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from aril.core.errors import Unsupported
from aril.quant.base import LinearShape, QuantFormat, Stored
from aril.quant.detect import detect
from aril.quant.formats.compressed_tensors import CompressedTensors
from builders.compressed import args, config, group

SHAPE = LinearShape(128, 64, torch.bfloat16)
LAYER = "model.layers.0"
INT8, INT4 = args(8), args(4, "int", "group", group_size=32)
FP8 = args(8, "float", "channel")
TOKENS = args(8, "int", "token", dynamic=True)
KV = args(8, "float", "tensor")


def opened(*groups: Mapping[str, Any], form: str = "naive-quantized", **more: Any) -> QuantFormat:
    """The format of a config; its header holds whatever is asked for."""
    return CompressedTensors.from_checkpoint(config(form, *groups, **more), more.pop("stored", {}))


def of(weights: Mapping[str, Any], *targets: str, **more: Any) -> dict[str, Any]:
    return {**group(weights, **more), "targets": list(targets)}


def words(format_: QuantFormat, name: str) -> str:
    return format_.linear(name, SHAPE).describe().split(",", maxsplit=1)[0]


def test_the_method_is_found_by_the_name_that_the_config_has_for_it() -> None:
    assert detect(config("pack-quantized", group(INT4))) is CompressedTensors


def test_a_name_goes_before_an_expression_and_an_expression_before_a_class() -> None:
    found = opened(
        of(INT8, "Linear"),
        of(FP8, r"re:.*self_attn\.(q|k)_proj$"),
        of(INT4, f"{LAYER}.self_attn.k_proj"),
        form="mixed-precision",
    )
    names = (f"{LAYER}.self_attn.{name}_proj" for name in "qkv")
    assert [words(found, name) for name in names] == ["fp8 (e4m3)", "int4", "int8"]


def test_an_expression_matches_from_the_start_of_a_path_and_need_not_reach_its_end() -> None:
    found = opened(of(INT8, r"re:model\.layers\.0", "re:mlp"), ignore=[])
    assert words(found, f"{LAYER}.mlp.up_proj") == "int8"
    assert words(found, "model.layers.1.mlp.up_proj") == "not quantised"


@pytest.mark.parametrize("ignored", [f"{LAYER}.mlp.up_proj", r"re:.*up_proj$", "Linear"])
def test_what_is_ignored_by_name_expression_or_class_stays_as_it_is(ignored: str) -> None:
    found = opened(of(INT8, "Linear"), ignore=[ignored])
    assert words(found, f"{LAYER}.mlp.up_proj") == "not quantised"
    assert words(found, f"{LAYER}.mlp.down_proj") == ("not quantised" if ignored == "Linear" else "int8")


def test_the_embedding_is_of_a_class_of_its_own() -> None:
    assert words(opened(of(INT8, "Linear")), "model.embed_tokens") == "not quantised"
    assert words(opened(of(INT8, "Embedding")), "model.embed_tokens") == "int8"


def test_a_group_of_nothing_leaves_its_modules_as_they_are() -> None:
    found = opened(of(INT8, "Linear"), {"targets": ["re:.*down_proj"], "weights": None})
    assert words(found, f"{LAYER}.mlp.down_proj") == "not quantised"


@pytest.mark.parametrize(
    ("weights", "inputs", "suffix"),
    [
        (INT4, None, "weight_packed"),
        (INT8, TOKENS, "weight"),
        (FP8, None, "weight"),
        (args(4, "float", "tensor_group", group_size=16), None, "weight_global_scale"),
        (args(4, "float", "group", group_size=32, scale_dtype="torch.uint8"), None, "weight_packed"),
    ],
    ids=["int4", "int8 with inputs", "fp8", "nvfp4", "mxfp4"],
)
def test_where_no_format_is_named_it_is_what_the_tool_writes(
    weights: dict[str, Any], inputs: dict[str, Any] | None, suffix: str
) -> None:
    found = opened({**group(weights), "input_activations": inputs}, form="mixed-precision")
    assert suffix in found.linear(f"{LAYER}.mlp.up_proj", SHAPE).tensors(SHAPE)


def test_settings_that_are_left_out_are_those_of_the_tool() -> None:
    found = opened(of({"num_bits": 4, "group_size": 32}, "Linear"), form="pack-quantized")
    assert found.linear("m", SHAPE).describe() == "int4, group 32, 16-bit inputs"
    found = opened(of({"num_bits": 8, "group_size": -1}, "Linear"), form="int-quantized")
    assert found.linear("m", SHAPE).describe() == "int8, a scale per output, 16-bit inputs"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no groups": ({"config_groups": {}}, "config_groups is empty"),
    "a preset's name": ({"config_groups": {"W8A8": ["Linear"]}}, r"config_groups\.W8A8"),
    "sparse weights": ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
    "rotations": ({"transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}}, "transform_config.*R1"),
    "2:4 weights for Marlin": ({"format": "marlin-24"}, "marlin-24"),
    "6-bit floats": ({"format": "mxfp6-quantized"}, "mxfp6"),
    "int8 kv cache": ({"kv_cache_scheme": args(8, "int", "tensor")}, "kv_cache_scheme.*8-bit int"),
    "a kv cache by heads": ({"kv_cache_scheme": {**KV, "strategy": "attn_head"}}, "kv_cache_scheme.*attn_head"),
    "a kv cache by the step": ({"kv_cache_scheme": {**KV, "dynamic": True}}, "kv_cache_scheme.*dynamic True"),
    "an endless expression": ({"ignore": [r"re:((\w*\W*)*(\w*)*)*\1(x+x+)+y"]}, "ignore.*takes too long"),
    "no expression": ({"ignore": ["re:("]}, "ignore.*not a regular expression"),
}
REFUSED_GROUPS: dict[str, tuple[dict[str, Any], str]] = {
    "outputs": ({"output_activations": TOKENS}, "output_activations"),
    "inputs alone": ({"weights": None, "input_activations": TOKENS}, r"group_0\.weights.*without weights"),
    "9 bits": ({"weights": args(9)}, "9-bit int"),
    "1 bit": ({"weights": args(1)}, "1-bit int"),
    "bits in words": ({"weights": {**INT8, "num_bits": "eight"}}, "num_bits 'eight'"),
    "dynamic weights": ({"weights": {**INT8, "dynamic": True}}, "dynamic false"),
    "asymmetric floats": ({"weights": {**FP8, "symmetric": False}}, "asymmetric float"),
    "a group without a size": ({"weights": args(4, "int", "group")}, "strategy 'group'"),
    "an unknown strategy": ({"weights": args(4, "int", "row")}, "strategy 'row'"),
    "half a block": ({"weights": args(8, "float", "block", block_structure=[128])}, "block_structure"),
    "packed floats": ({"weights": FP8, "format": "pack-quantized"}, "pack-quantized"),
    "int weights of tensor groups": ({"weights": args(4, "int", "tensor_group", group_size=16)}, "int weights"),
    "static int4 inputs": ({"input_activations": args(4, "int", "tensor")}, "4-bit int inputs"),
    "static inputs by channels": ({"input_activations": args(8, "int", "channel")}, "strategy channel"),
    "4-bit float inputs": ({"input_activations": args(4, "float", "token", dynamic=True)}, "4-bit float inputs"),
    "no object": ({"weights": "int8"}, r"group_0\.weights"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_config_that_cannot_be_read_is_refused_by_field(what: str) -> None:
    changes, told = REFUSED[what]
    said = {**config("naive-quantized", group(INT8)), **changes}
    with pytest.raises(Unsupported, match=told):
        CompressedTensors.from_checkpoint(said, {}).linear("x" * 5000, SHAPE)


@pytest.mark.parametrize("what", REFUSED_GROUPS)
def test_a_group_that_cannot_be_read_is_refused_by_field(what: str) -> None:
    changes, told = REFUSED_GROUPS[what]
    with pytest.raises(Unsupported, match=told):
        opened({**group(INT8), **changes})


def test_a_header_that_contradicts_the_config_is_refused_by_module() -> None:
    plain = Stored((64, 128), torch.bfloat16)
    cases = {
        "leaves m as it is.*m.weight_packed": (
            of(INT4, "re:other"),
            {"m.weight_packed": Stored((64, 16), torch.int32)},
        ),
        "targets m, but m.weight is plain": (of(INT4, "Linear"), {"m.weight": plain}),
    }
    for told, (said, stored) in cases.items():
        with pytest.raises(Unsupported, match=told):
            opened(said, form="pack-quantized", stored=stored).linear("m", SHAPE)


def test_kv_scales_are_where_each_tool_puts_them_and_wanted_only_for_a_scheme() -> None:
    path = f"{LAYER}.self_attn"
    for place in ("{}_scale", "{}_proj.output_scale", "{}_proj.{}_scale"):
        names = {which: f"{path}.{place.replace('{}', which)}" for which in "kv"}
        stored = dict.fromkeys(names.values(), Stored((1,), torch.bfloat16))
        assert opened(of(INT8, "Linear"), kv_cache_scheme=KV, stored=stored).kv_scales(path) == names
    assert opened(of(INT8, "Linear"), kv_cache_scheme=KV).kv_scales(path)["k"] == f"{path}.k_scale"
    assert opened(of(INT8, "Linear")).kv_scales(path) == {}
