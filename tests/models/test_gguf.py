"""GGUF files give transformers' logits; what their block types mean is shown in tests/quant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from aril.core.errors import Unsupported
from aril.models.base import Decoder
from aril.models.gguf_file import GgufFile
from aril.models.loader import load_model
from aril.models.source import locate
from builders.gguf import make_gguf
from builders.models import make_model
from builders.pages import Pages, differences, some_tokens
from transformers import AutoModelForCausalLM, GgufConfig

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True, "head_dim": 128}),
}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
LLAMA3_BLEND = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
UNREAD_BY_TRANSFORMERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "head size": ("qwen3", {"head_dim": 32}, {}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "window": ("mistral", {"sliding_window": 24}, {"attention__sliding_window": 24}),
    "linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0},
    ),
    "yarn": (
        "llama",
        {"rope_parameters": YARN},
        {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 128},
    ),
    "llama 3": ("llama", {"rope_parameters": {**LLAMA3, **LLAMA3_BLEND}}, {}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_gives_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    model_type, overrides = FAMILIES[family]
    folder = make_model(tmp_path / "hf", model_type, **overrides)
    file = make_gguf(tmp_path / "tiny.gguf", folder)
    dequantised = GgufConfig(dequantize=True)
    reference = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, quantization_config=dequantised, dtype=torch.float32
    )
    assert differences(load(file), reference, lengths=(40, 7)) < 1e-4


def test_metadata_reads_as_its_own_library_reads_it(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf", make_model(tmp_path / "hf"))
    theirs = {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}
    assert GgufFile(file).metadata == {name: value for name, value in theirs.items() if not name.startswith("GGUF.")}


@pytest.mark.parametrize("case", UNREAD_BY_TRANSFORMERS)
def test_what_transformers_overlooks_in_a_gguf_file_is_heeded(case: str, tmp_path: Path) -> None:
    """So the folder that the file was made of is what it is compared with."""
    family, overrides, metadata = UNREAD_BY_TRANSFORMERS[case]
    folder = make_model(tmp_path / "hf", family, **overrides)
    file = make_gguf(tmp_path / "tiny.gguf", folder, "F32", **metadata)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert differences(load(file), reference, lengths=(60, 7)) < 1e-4


def test_beside_quantised_weights_everything_is_bfloat16_and_else_as_stored(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "hf")
    kinds = {"Q4_1": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}
    files = {kind: make_gguf(tmp_path / f"{kind}.gguf", folder, kind) for kind in kinds}
    assert {kind: load(file, dtype="auto").spec.dtype for kind, file in files.items()} == kinds


def test_a_file_cut_short_is_refused_by_name(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf", make_model(tmp_path / "hf"))
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(Unsupported, match=r"tiny\.gguf is not a whole GGUF file"):
        load(file)


def test_another_architecture_is_refused_with_the_list(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(Unsupported, match=r"architecture is 'mamba'; GGUF files of llama, qwen2, qwen3 can be read"):
        load(tmp_path / "other.gguf")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("block_count", 1_000_000, r"holds no tensor blk\.999999\.attn_norm\.weight"),
        ("attention__head_count", 0, r"llama\.attention\.head_count is 0"),
        ("embedding_length", "wide", r"llama\.embedding_length is 'wide'"),
    ],
)
def test_metadata_that_cannot_be_are_refused_by_name(key: str, value: Any, said: str, tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf", make_model(tmp_path / "hf"), **{key: value})
    with pytest.raises(Unsupported, match=said):
        load(file)


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf", make_model(tmp_path / "hf"))
    tokens = some_tokens(5, seed=0)
    from_folder, from_file = (Pages(load(path)).run({"row": tokens})["row"] for path in (tmp_path, file))
    assert torch.equal(from_folder, from_file)


def load(path: Path, dtype: torch.dtype | str = torch.float32) -> Decoder:
    return load_model(locate(str(path)), dtype=dtype, device=torch.device("cpu"))
