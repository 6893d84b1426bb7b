"""bitsandbytes checkpoints mean their dequantised weights: NF4 and FP4, scales in one level or two, and LLM.int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from aril.core.errors import Unsupported
from aril.models.loader import load_model
from aril.models.source import locate
from aril.quant.base import LinearShape, Stored
from aril.quant.formats.bitsandbytes import BitsAndBytes
from aril.quant.matrix import GroupedMatrix, Matrix, PlainMatrix
from builders.bnb import Tensors, eight_bit, four_bit
from builders.mixed import assert_mixed_batch_follows, plain_model
from builders.models import make_model
from builders.pages import differences
from builders.quantised import make_quantised
from torch import Tensor

NAME = "some.linear"
FOUR = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}
EIGHT = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}
WAYS: dict[str, dict[str, Any]] = {
    "nf4": {},
    "nf4, two levels": {"nested": True},
    "fp4": {"kind": "fp4"},
    "fp4, two levels": {"kind": "fp4", "nested": True},
    "blocks of 128": {"blocksize": 128},
    "kept as bfloat16": {"storage": torch.bfloat16},
}


def weight(n: int = 24, k: int = 192) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(0)) / k**0.5


def read(tensors: Tensors, n: int, k: int, config: dict[str, Any] = FOUR) -> Matrix:
    """The matrix of the tensors, which must be all that is asked for."""
    stored = {f"{NAME}.{name}": Stored(tuple(each.shape), each.dtype) for name, each in tensors.items()}
    shape = LinearShape(k, n, torch.bfloat16)
    method = BitsAndBytes.from_checkpoint(config, stored).linear(NAME, shape)
    specs = method.tensors(shape)
    assert specs.keys() == tensors.keys()
    assert all(tuple(tensors[name].shape) == spec.shape for name, spec in specs.items())
    assert all(tensors[name].dtype in spec.dtypes for name, spec in specs.items())
    return method.read(tensors, shape)


@pytest.mark.parametrize("way", WAYS)
def test_four_bits_mean_their_map_times_their_block(way: str) -> None:
    tensors, dense = four_bit(weight(), **WAYS[way])
    found = read(tensors, 24, 192)
    assert isinstance(found, GroupedMatrix)
    assert torch.equal(found.dense(), dense)


@pytest.mark.parametrize("k", [96, 32, 80, 1000])
def test_blocks_that_do_not_end_with_a_row_are_read_exactly(k: int) -> None:
    tensors, dense = four_bit(weight(8, k))
    assert torch.equal(read(tensors, 8, k).dense(), dense)


@pytest.mark.parametrize("layout", [0, None])
def test_int8_means_its_scale_over_127(layout: int | None) -> None:
    tensors, dense = eight_bit(weight(), layout)
    found = read(tensors, 24, 192, EIGHT)
    assert isinstance(found, GroupedMatrix)
    torch.testing.assert_close(found.dense(), dense, rtol=3e-7, atol=0)  # one rounding in another place


def test_a_matrix_that_was_skipped_is_plain() -> None:
    stored = {f"{NAME}.weight": Stored((24, 192), torch.bfloat16)}
    shape = LinearShape(192, 24, torch.bfloat16)
    method = BitsAndBytes.from_checkpoint(EIGHT, stored).linear(NAME, shape)
    assert isinstance(method.read({"weight": weight().bfloat16()}, shape), PlainMatrix)


@pytest.mark.parametrize("way", [*WAYS, "int8"])
def test_two_adapters_on_a_checkpoint_answer_as_peft_on_its_dequantised_base(way: str, tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", hidden_size=64, intermediate_size=192)

    def pack(module: str, matrix: Tensor) -> tuple[Tensors, Tensor] | None:
        if module == "lm_head" or module.endswith("1.mlp.up_proj"):  # as llm_int8_skip_modules has it
            return None
        return eight_bit(matrix) if way == "int8" else four_bit(matrix, **WAYS[way])

    config = EIGHT if way == "int8" else {**FOUR, "bnb_4bit_quant_type": WAYS[way].get("kind", "nf4")}
    dense = make_quantised(tmp_path / "quantised", base, config, pack)
    reference = plain_model(tmp_path / "quantised", dense)
    decoder = load_model(locate(str(tmp_path / "quantised")), dtype=torch.float32, device=torch.device("cpu"))
    assert differences(decoder, reference, lengths=(20, 7)) < 1e-3
    assert_mixed_batch_follows(reference, tmp_path / "quantised", tmp_path)


def test_the_order_of_nibbles_matters() -> None:
    tensors, dense = four_bit(weight())
    packed = tensors["weight"]
    tensors["weight"] = (packed >> 4) | (packed << 4)
    assert (read(tensors, 24, 192).dense() - dense).abs().max() > 0.1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**FOUR, "load_in_8bit": True}, "both load_in_4bit and load_in_8bit"),
        ({"quant_method": "bitsandbytes"}, "neither load_in_4bit nor load_in_8bit"),
        ({**FOUR, "bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type is 'int4'; Aril reads nf4 and fp4"),
    ],
)
def test_a_config_that_means_nothing_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        BitsAndBytes.from_checkpoint(config, {})


def test_a_matrix_that_is_stored_in_two_ways_is_refused() -> None:
    tensors = {**four_bit(weight())[0], "SCB": torch.ones(24)}
    with pytest.raises(Unsupported, match=r"some\.linear is stored in two ways: nf4, int8"):
        read(tensors, 24, 192)


def test_packed_bytes_without_their_state_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"some\.linear\.weight is packed, but neither SCB nor .*nf4,fp4"):
        read({"weight": four_bit(weight())[0]["weight"]}, 24, 192)


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"shape": [192, 24]}, r"quant_state\.bitsandbytes__nf4 says nf4 \[192, 24\] instead of nf4 \[24, 192\]"),
        ({"quant_type": "fp4"}, r"quant_state\.bitsandbytes__nf4 says fp4 "),
        ({"blocksize": 0}, r"quant_state\.bitsandbytes__nf4 is no quant_state: ValueError a block of 0"),
        ({"blocksize": 128}, r"absmax holds 72 values instead of 36"),
        ({"shape": 5}, r"quant_state\.bitsandbytes__nf4 is no quant_state: TypeError"),
    ],
)
def test_a_state_that_contradicts_the_tensors_is_refused_by_name(claims: dict[str, Any], said: str) -> None:
    with pytest.raises(Unsupported, match=rf"^some\.linear\.weight\.{said}"):
        read(four_bit(weight(), claims=claims)[0], 24, 192)


def test_a_state_that_is_no_json_is_refused_by_name() -> None:
    tensors = four_bit(weight())[0]
    tensors["weight.quant_state.bitsandbytes__nf4"] = torch.zeros(40, dtype=torch.uint8)
    with pytest.raises(Unsupported, match=r"some\.linear\.weight\.quant_state\.bitsandbytes__nf4 is no quant_state"):
        read(tensors, 24, 192)


def test_a_layout_of_old_gpus_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"some\.linear\.weight_format is 2, a layout for old GPUs"):
        read(eight_bit(weight(), 2)[0], 24, 192, EIGHT)
