"""Every block type of GGUF is read bit for bit as llama.cpp's own library reads it, and stays packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from aril.core.errors import Unsupported
from aril.kernels.ops.grouped import pack
from aril.kernels.ops.grouped_rows import rows_of_grouped
from aril.models.base import Decoder
from aril.models.loader import load_model
from aril.models.source import locate
from aril.quant.base import LinearShape, Stored
from aril.quant.formats.gguf import KINDS, Gguf, GgufMethod
from aril.quant.matrix import GroupedMatrix
from builders.blocks import HALVES, dequantised, random_blocks
from builders.gguf import make_gguf
from builders.mixed import assert_mixed_batch_follows
from builders.models import make_model, make_tokenizer
from builders.pages import differences
from transformers import AutoModelForCausalLM, GgufConfig

ROWS, COLUMNS = 64, 768
LARGER = {"hidden_size": 256, "intermediate_size": 512}  # so that blocks of 256 fit
AS_Q4_K_M = {"v_proj": "Q6_K", "down_proj": "Q6_K", "embed_tokens": "Q6_K"}


def shape(columns: int = COLUMNS) -> LinearShape:
    return LinearShape(columns, ROWS, torch.bfloat16)


def read(kind: str, seed: int = 0) -> tuple[GroupedMatrix, np.ndarray[Any, Any]]:
    """A matrix of random blocks, and what llama.cpp's library takes it for."""
    raw = random_blocks(kind, ROWS, COLUMNS, seed)
    matrix = GgufMethod("some.linear", kind).read({"weight": torch.from_numpy(raw)}, shape())
    assert isinstance(matrix, GroupedMatrix)
    return matrix, dequantised(raw, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_means_to_the_bit_what_its_own_library_says(kind: str) -> None:
    matrix, theirs = read(kind)
    assert np.array_equal(matrix.dense().numpy().view(np.int32), theirs.view(np.int32))


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_table_is_looked_up_exactly(kind: str) -> None:
    matrix, theirs = read(kind, seed=1)
    ids = torch.tensor([5, 0, ROWS - 1, 5])
    found = rows_of_grouped(pack(matrix.weight), ids)
    assert np.array_equal(found.numpy(), theirs[ids])


@pytest.mark.parametrize("kind", KINDS)
def test_the_sizes_of_blocks_are_those_of_the_library(kind: str) -> None:
    ours = KINDS[kind]
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]] == (ours.block, ours.size)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_take_about_the_bytes_of_the_file(kind: str) -> None:
    matrix, _ = read(kind)
    in_file = random_blocks(kind, ROWS, COLUMNS, 0).nbytes
    told = GgufMethod("some.linear", kind).weight_bytes(shape())
    assert told < 1.2 * in_file
    assert pack(matrix.weight).nbytes < 1.2 * told + 64  # a codebook has 64 bytes


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Q4_1"])
def test_a_file_of_a_type_gives_the_logits_of_transformers(kind: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "hf", tie_word_embeddings=kind.startswith("Q"), **LARGER)
    assert worst_difference(make_gguf(tmp_path / "tiny.gguf", folder, kind)) < 1e-3


def test_a_file_that_mixes_types_within_a_layer_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "hf", **LARGER)
    assert worst_difference(make_gguf(tmp_path / "tiny.gguf", folder, "Q4_K", AS_Q4_K_M)) < 1e-3


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_0", "Q8_0", "Q3_K", "Q4_K", "IQ4_NL"])
def test_adapters_on_a_packed_base_answer_as_in_peft(kind: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "hf", **LARGER)
    home = tmp_path / "gguf"
    make_tokenizer(vocab_size=512).save_pretrained(home)
    file = make_gguf(home / "tiny.gguf", folder, kind, AS_Q4_K_M if kind == "Q4_K" else None)
    assert_mixed_batch_follows(in_transformers(file), home, tmp_path)


def test_a_loaded_network_is_not_much_larger_than_its_file(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "hf", hidden_size=512, intermediate_size=1024, max_position_embeddings=64)
    file = make_gguf(tmp_path / "tiny.gguf", folder, "Q4_K", AS_Q4_K_M)
    assert load(file, torch.bfloat16).weight_bytes < 1.2 * file.stat().st_size


def test_a_type_that_is_not_read_is_refused_with_those_that_are() -> None:
    stored = {"model.layers.0.mlp.up_proj.weight": Stored((64, 256), "IQ2_XXS")}
    with pytest.raises(Unsupported, match=r"up_proj\.weight is of GGUF type IQ2_XXS.*it reads Q4_0, .*Q6_K.*, BF16"):
        Gguf.from_checkpoint({"quant_method": "gguf"}, stored)


def test_a_matrix_that_blocks_do_not_divide_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match=r"some\.linear\.weight: 288 inputs cannot be Q4_K, whose blocks are of 256"):
        GgufMethod("some.linear", "Q4_K").tensors(shape(288))


def test_every_type_that_is_read_is_tried_here() -> None:
    assert KINDS.keys() == HALVES.keys()


def worst_difference(file: Path) -> float:
    return differences(load(file, torch.float32), in_transformers(file), lengths=(20, 7))


def in_transformers(file: Path) -> Any:
    """The model of a file, dequantised."""
    return AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )


def load(path: Path, dtype: torch.dtype) -> Decoder:
    return load_model(locate(str(path)), dtype=dtype, device=torch.device("cpu"))
