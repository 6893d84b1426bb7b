"""Known wrong files: each gets words of its own, and so does every real configuration that was judged."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.core.errors import InvalidAdapter
from aril.lora.config import AdapterConfig
from aril.lora.header import MAX_HEADER
from aril.lora.strangers import instead_of_weights
from aril.lora.validate import TargetSpec, validate
from builders.adapters import make_adapter
from safetensors.torch import save_file

PLAIN = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 16\n"
MLX = {"fine_tune_type": "lora", "num_layers": 16, "lora_parameters": {"rank": 8, "dropout": 0.0, "scale": 20.0}}
MLX_OLD = {"lora_layers": 16, "adapter_path": "adapters", "rank": 8}
ADAPTERHUB = {
    "config": {"architecture": "lora", "alpha": 8, "r": 8, "attn_matrices": ["q", "v"]},
    "hidden_size": 576,
    "model_class": "LlamaAdapterModel",
    "model_name": "HuggingFaceTB/SmolLM2-135M",
    "name": "mine",
    "version": "adapters.1.2.0",
}

CONFIGS: dict[str, tuple[object, str]] = {
    "MLX-LM": (MLX, "adapter of MLX-LM"),
    "MLX-LM, older": (MLX_OLD, "adapter of MLX-LM"),
    "AdapterHub": (ADAPTERHUB, "AdapterHub"),
    "a model's config.json": ({"architectures": ["LlamaForCausalLM"], "num_layers": 2}, "config.json of a whole model"),
    "nothing": ({}, "peft_type is missing"),
    "another kind": ({"peft_type": "IA3"}, "peft_type: IA3 is not supported"),
    "alpha": ({**PLAIN, "alpha": 16}, "PEFT calls it lora_alpha"),
    "rank": ({**PLAIN, "rank": 16}, "PEFT calls it r"),
    "encoder-decoder": ({**PLAIN, "task_type": "SEQ_2_SEQ_LM"}, "encoder-decoder"),
    "classifier": ({**PLAIN, "task_type": "SEQ_CLS"}, "classifies texts"),
    "vision": ({**PLAIN, "task_type": "IMAGE_CLASSIFICATION"}, "a vision model"),
    "vision by class": (
        {**PLAIN, "auto_mapping": {"base_model_class": "Gemma3ForConditionalGeneration"}},
        "Gemma3ForConditionalGeneration, which is an encoder-decoder or vision-language model",
    ),
    "classifier by class": (
        {**PLAIN, "auto_mapping": {"base_model_class": "LlamaForSequenceClassification"}},
        "classifies texts",
    ),
}


@pytest.mark.parametrize(("document", "said"), CONFIGS.values(), ids=CONFIGS.keys())
def test_a_configuration_that_is_none_of_ours_gets_its_own_words(document: object, said: str) -> None:
    assert said in "\n".join(problems_of(json.dumps(document)))


TEXTS: dict[str, tuple[str, str]] = {
    "pointer": (POINTER, "adapter_config.json is a Git LFS pointer"),
    "web page": ("\n<!DOCTYPE html><html>Sign in</html>", "is a web page"),
    "twice": ('{"peft_type": "LORA", "r": 8, "r": 16}', "the key 'r' is there twice"),
    "twice, within": ('{"peft_type": "LORA", "rank_pattern": {"q": 1, "q": 2}}', "the key 'q' is there twice"),
}


@pytest.mark.parametrize(("text", "said"), TEXTS.values(), ids=TEXTS.keys())
def test_text_that_is_no_configuration_is_refused(text: str, said: str) -> None:
    assert said in "\n".join(problems_of(text))


def test_every_real_config_is_refused_for_the_reason_that_people_gave(shared_data: Path) -> None:
    folder = shared_data / "adapter_configs"
    for entry in json.loads((folder / "index.json").read_text()):
        found = "\n".join(problems_of((folder / entry["file"]).read_text()))
        served = entry["judgement"].startswith("serve")
        assert served == (found == ""), f"{entry['file']}: {entry['judgement']} / {found}"
        assert served or reason_in(entry) in found, f"{entry['file']}: {entry['judgement']} / {found}"


def reason_in(entry: dict[str, Any]) -> str:
    """The words that must stand in a refusal of this file."""
    judged = entry["judgement"]
    words = ("DoRA", "GLiNER2", "encoder-decoder", "MLX-LM", "MergedLinear")
    return next((word for word in words if word in judged), f"peft_type: {entry['peft_type']}")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, loaded: Any) -> Path:
    return make_adapter(tmp_path_factory.mktemp("pristine"), loaded, r=4)


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(pristine, tmp_path / "adapter"))


def torch_save(path: Path) -> None:
    torch.save({"a": torch.ones(2)}, path)


def with_header(header: bytes, *, claimed: int | None = None) -> Callable[[Path], object]:
    length = struct.pack("<Q", len(header) if claimed is None else claimed)
    return lambda path: path.write_bytes(length + header + b"\0" * 8)


def huge(path: Path) -> None:
    with path.open("wb") as file:  # sparse: it takes no room
        file.write(struct.pack("<Q", MAX_HEADER + 1))
        file.truncate(MAX_HEADER + 1024)


TWINS = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
OVERLAP = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
WEIGHTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pointer": (lambda path: path.write_text(POINTER), "adapter_model.safetensors is a Git LFS pointer"),
    "web page": (lambda path: path.write_text("<html>Sign in</html>"), "is a web page"),
    "a pickle under another name": (torch_save, "is a pickle"),
    "no tensors": (lambda path: save_file({}, path), "holds no tensors"),
    "empty": (lambda path: path.write_bytes(b""), "it has 0 bytes"),
    "a header longer than the file": (with_header(b"{}", claimed=2**40), "claims a header of 1099511627776 bytes"),
    "a header beyond all numbers": (with_header(b"{}", claimed=2**64 - 1), "claims a header of"),
    "a header too long to read": (huge, f"over the {MAX_HEADER} that are read"),
    "a header that nests without end": (with_header(b"[" * 100_000), "its header"),
    "a header that is no JSON": (with_header(b"{]"), "its header"),
    "two tensors of one name": (with_header(TWINS), "the key 'a' is there twice"),
    "tensors that overlap": (with_header(OVERLAP), "is not a safetensors file"),
}


@pytest.mark.parametrize(("write", "said"), WEIGHTS.values(), ids=WEIGHTS.keys())
def test_weights_that_are_none_are_told_apart(
    write: Callable[[Path], object], said: str, folder: Path, targets: TargetSpec
) -> None:
    weights = folder / "adapter_model.safetensors"
    weights.unlink()
    write(weights)
    with pytest.raises(InvalidAdapter) as caught:
        validate(folder, targets)
    assert said in "\n".join(caught.value.problems)


def problems_of(text: str) -> list[str]:
    problems: list[str] = []
    AdapterConfig.from_json(text.encode(), problems)
    return problems


OTHER_FILES = {
    "adapters.safetensors": "MLX-LM's weights",
    "0000100_adapters.safetensors": "MLX-LM's weights",
    "pytorch_adapter.bin": "AdapterHub's weights",
    "pytorch_lora_weights.safetensors": "a LoRA of an image model",
    "adapter_model.bin": "a pickle, which can run code",
    "adapter_model.pt": "a pickle, which can run code",
    "model-00001-of-00002.safetensors": "weights of a whole model",
    "lora.gguf": "llama.cpp's format",
    "lora.safetensors": "under another name",
}


@pytest.mark.parametrize(("name", "said"), OTHER_FILES.items())
def test_weights_under_another_name_are_told_by_it(name: str, said: str) -> None:
    told = instead_of_weights(["README.md", name], "adapter_model.safetensors") or ""
    assert (name in told, said in told, "save the adapter as adapter_model.safetensors" in told) == (True, True, True)


def test_files_beside_the_weights_are_nothing_to_tell() -> None:
    assert instead_of_weights(["README.md", "adapter_config.json"], "adapter_model.safetensors") is None
