"""An adapter's files against the base: what real files look like is accepted, every fault is named, all at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.core.errors import InvalidAdapter
from aril.lora.fingerprint import Fingerprint
from aril.lora.image import load_image
from aril.lora.validate import TargetSpec, inspect, validate
from builders.adapters import make_adapter
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, loaded: Any) -> Path:
    """A valid adapter of rank 4 on q and v."""
    return make_adapter(tmp_path_factory.mktemp("pristine"), loaded, r=4)


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(pristine, tmp_path / "adapter"))


def test_a_valid_adapter_is_summarised(folder: Path, targets: TargetSpec) -> None:
    summary = validate(folder, targets)
    parameters = 3 * (4 * (64 + 64) + 4 * (64 + 32))  # three layers, q and v
    assert (summary.rank, summary.target_modules, summary.num_modules) == (4, ("q_proj", "v_proj"), 6)
    assert (summary.num_parameters, summary.size) == (parameters, 4 * parameters)


RENAMES: dict[str, Callable[[str], str]] = {
    "with an adapter name": lambda name: name.replace(".weight", ".default.weight"),
    "trained on the bare model": lambda name: name.replace("base_model.model.model.", "base_model.model."),
    "without PEFT's prefix": lambda name: name.replace("base_model.model.", ""),
}


@pytest.mark.parametrize("rename", RENAMES.values(), ids=RENAMES.keys())
def test_names_as_tools_write_them_mean_the_same(
    rename: Callable[[str], str], folder: Path, targets: TargetSpec
) -> None:
    parts = list(targets.modules)
    expected = load_image(folder, targets, parts)
    edit_tensors(folder, lambda tensors: {rename(name): tensor for name, tensor in tensors.items()})
    assert torch.equal(load_image(folder, targets, parts).data, expected.data)


def put(name: str, tensor: torch.Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: tensor}


def drop(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if part not in name}


def spoil(name: str, value: float) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: tensors[name].index_fill(1, torch.tensor([2]), value)}


FAULTS: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "no such module": (put("base_model.model.model.layers.9.mlp.x.lora_A.weight", torch.ones(4, 64)), "layers.9.mlp.x"),
    "embedding": (put("base_model.model.model.embed_tokens.lora_embedding_A", torch.ones(4, 512)), "embeddings"),
    "head": (put("base_model.model.lm_head.lora_A.weight", torch.ones(4, 64)), "output head"),
    "DoRA": (put(f"{Q0}.lora_magnitude_vector", torch.ones(64)), "DoRA"),
    "bias": (put(f"{Q0}.lora_B.bias", torch.ones(64)), "bias on lora_B"),
    "missing half": (drop("layers.0.self_attn.q_proj.lora_B"), "layers.0.self_attn.q_proj.lora_B.weight"),
    "missing module": (drop("layers.1.self_attn.v_proj"), "module model.layers.1.self_attn.v_proj"),
    "twins": (put(f"{Q0}.lora_A.default.weight", torch.ones(4, 64)), "the same half"),
    "not targeted": (
        lambda tensors: tensors | {n.replace("v_proj", "k_proj"): t.clone() for n, t in tensors.items()},
        "target_modules does not name it",
    ),
    "wrong width": (put(f"{Q0}.lora_A.weight", torch.ones(4, 63)), "shape [4, 63]"),
    "transposed": (put(f"{Q0}.lora_B.weight", torch.ones(4, 64)), "shape [4, 64]"),
    "other rank": (put(f"{Q0}.lora_A.weight", torch.ones(8, 64)), "shape [8, 64]"),
    "integers": (put(f"{Q0}.lora_A.weight", torch.ones(4, 64, dtype=torch.int8)), "dtype I8"),
    "NaN": (spoil(f"{Q0}.lora_A.weight", float("nan")), "NaN or Inf"),
    "Inf": (spoil(f"{Q0}.lora_B.weight", float("inf")), "NaN or Inf"),
    "nothing": (lambda tensors: {}, "holds no tensors"),
}


@pytest.mark.parametrize(("fault", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_in_the_tensors_is_named(
    fault: Callable[[Tensors], Tensors], said: str, folder: Path, targets: TargetSpec
) -> None:
    edit_tensors(folder, fault)
    assert said in "\n".join(problems_of(folder, targets))


def test_numbers_that_the_serving_dtype_cannot_hold_are_refused(folder: Path, targets: TargetSpec) -> None:
    edit_tensors(folder, spoil(f"{Q0}.lora_B.weight", 60000.0))  # times alpha / r = 2
    half = TargetSpec(targets.base, targets.modules, torch.float16)
    assert validate(folder, targets).rank == 4
    assert ["too large for float16" in problem for problem in problems_of(folder, half)] == [True]


def test_faults_of_config_names_shapes_and_numbers_are_listed_together(folder: Path, targets: TargetSpec) -> None:
    edit_config(folder, use_dora=True)
    edit_tensors(folder, put("stray", torch.ones(1)))
    edit_tensors(folder, put(f"{Q0}.lora_A.weight", torch.ones(5, 64)))
    edit_tensors(folder, spoil("base_model.model.model.layers.2.self_attn.v_proj.lora_A.weight", float("nan")))
    found = problems_of(folder, targets)
    assert [word in problem for word, problem in zip(("DoRA", "stray", "[5, 64]", "NaN"), found, strict=True)] == [
        True
    ] * 4


def test_a_rank_that_contradicts_the_config_is_refused(folder: Path, targets: TargetSpec) -> None:
    edit_config(folder, r=16)
    first, *shapes, rest = problems_of(folder, targets)
    assert first.startswith("adapter_config.json says r=16, the file has rank 4: ")
    assert first.endswith("self_attn.q_proj and 5 more modules")
    assert ["shape [" in each for each in shapes] == [True] * 6
    assert rest == "6 more tensors have a wrong shape or dtype"  # of both halves of six modules


def test_a_rank_that_the_config_has_wrong_for_one_module_is_told_of_it_alone(folder: Path, targets: TargetSpec) -> None:
    edit_config(folder, rank_pattern={"layers.1.self_attn.v_proj": 2})
    first, *shapes = problems_of(folder, targets)
    assert first.startswith("adapter_config.json says r=2, the file has rank 4: ")
    assert first.endswith("layers.1.self_attn.v_proj")
    assert len(shapes) == 2


@pytest.mark.parametrize("head", ["lm_head", "embed_tokens"])
def test_targeting_embeddings_or_the_head_is_refused(head: str, folder: Path, targets: TargetSpec) -> None:
    edit_config(folder, target_modules=["q_proj", "v_proj", head])
    assert problems_of(folder, targets) == (f"target_modules: LoRA on {head} is not supported",)


def test_a_target_that_the_base_does_not_have_is_noted(folder: Path, targets: TargetSpec) -> None:
    edit_config(folder, target_modules=["q_proj", "v_proj", "Wqkv"])
    assert any("Wqkv" in note for note in validate(folder, targets).notes)


def test_another_base_is_told_by_both_names_and_left_to_the_uploader(folder: Path, targets: TargetSpec) -> None:
    edit_config(folder, base_model_name_or_path="unsloth/other-bnb-4bit")
    named = TargetSpec(Fingerprint("tiny", ("owner/tiny-7b",)), targets.modules, targets.dtype)
    told = validate(folder, named).other_base or ""
    assert [name in told for name in ("unsloth/other-bnb-4bit", "owner/tiny-7b")] == [True] * 2
    assert inspect(folder, targets).other_base is None


def test_inspect_finds_all_but_numbers(folder: Path, targets: TargetSpec) -> None:
    assert inspect(folder, targets) == validate(folder, targets)
    edit_tensors(folder, spoil(f"{Q0}.lora_A.weight", float("nan")))
    assert inspect(folder, targets).rank == 4


def test_an_adapter_without_target_modules_adapts_what_it_holds(folder: Path, targets: TargetSpec) -> None:
    edit_config(folder, target_modules=None)
    assert validate(folder, targets).num_modules == 6


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda f: weights(f).unlink(), "adapter_model.safetensors is missing"),
    "no config": (lambda f: (f / "adapter_config.json").unlink(), "adapter_config.json is missing"),
    "a pickle": (lambda f: weights(f).rename(f / "adapter_model.bin"), "pickle"),
    "LFS pointer": (
        lambda f: weights(f).write_text("version https://git-lfs.github.com/spec/v1\noid x\n"),
        "git lfs pull",
    ),
    "cut off": (lambda f: weights(f).write_bytes(weights(f).read_bytes()[:-7]), "not a safetensors file"),
    "empty": (lambda f: weights(f).write_bytes(b""), "not a safetensors file"),
    "config is no JSON": (lambda f: (f / "adapter_config.json").write_text("{"), "not JSON"),
    "config is a list": (lambda f: (f / "adapter_config.json").write_text("[]"), "not a JSON object"),
}


@pytest.mark.parametrize(("spoiling", "said"), FILES.values(), ids=FILES.keys())
def test_files_that_cannot_be_read_are_named(
    spoiling: Callable[[Path], object], said: str, folder: Path, targets: TargetSpec
) -> None:
    spoiling(folder)
    assert said in "\n".join(problems_of(folder, targets))


def weights(folder: Path) -> Path:
    return folder / "adapter_model.safetensors"


def edit_tensors(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(weights(folder)).items()}
    save_file(change(tensors), weights(folder))


def edit_config(folder: Path, **fields: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def problems_of(folder: Path, targets: TargetSpec) -> tuple[str, ...]:
    with pytest.raises(InvalidAdapter) as caught:
        validate(folder, targets)
    return caught.value.problems
