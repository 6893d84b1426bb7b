"""What is on disk and what a config asks for must be the same thing, or the refusal says by name what is not."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.core.errors import ArilError, InvalidRequest, NotFound, Unsupported
from aril.kernels.native.build import library
from aril.kernels.ops.matmul import linear, unpack
from aril.models.base import Decoder
from aril.models.layers.linear import Part
from aril.models.loader import load_model
from aril.models.source import locate
from builders.models import make_model
from builders.pages import Pages, differences, some_tokens
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

Tensors = dict[str, Tensor]


@pytest.mark.parametrize("form", ["sharded", "bin", "sharded bin", "bin of before torch 1.6"])
def test_every_form_of_checkpoint_gives_the_same_network(form: str, tmp_path: Path) -> None:
    whole = make_model(tmp_path / "whole")
    other = make_model(tmp_path / "other", shard_size="100KB") if form == "sharded" else make_model(tmp_path / "other")
    if "bin" in form:
        pickle_weights(other, shards=2 if "sharded" in form else 1, zipped="before" not in form)
    assert torch.equal(logits(load(other)), logits(load(whole)))


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Path}))
    with pytest.raises(Unsupported, match=r"pytorch_model\.bin cannot be read as tensors and nothing else"):
        load(folder)


def test_older_configs_scale_rope_as_transformers_reads_them(tmp_path: Path) -> None:
    def as_of_2023(config: dict[str, Any]) -> None:
        del config["rope_parameters"]
        config |= {"rope_theta": 5e4, "rope_scaling": {"type": "linear", "factor": 4.0}, "torch_dtype": "float32"}
        del config["dtype"]

    folder = with_config(make_model(tmp_path), as_of_2023)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert reference.config.rope_parameters["rope_theta"] == 5e4
    assert differences(load(folder, dtype="auto"), reference, lengths=(40,)) < 1e-4


def test_fused_projections_remember_the_checkpoint_names_of_their_parts(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    qkv = load(folder).linears["layers.1.qkv"]
    path = "model.layers.1.self_attn"
    assert qkv.parts == (Part(f"{path}.q_proj", 0, 64), Part(f"{path}.k_proj", 64, 32), Part(f"{path}.v_proj", 96, 32))
    stored = load_file(folder / "model.safetensors")
    assert torch.equal(unpack(qkv.product.weight), torch.cat([stored[f"{part.name}.weight"] for part in qkv.parts]))


def test_the_spec_says_what_the_files_say(tmp_path: Path) -> None:
    spec = load(make_model(tmp_path)).spec
    assert (spec.architecture, spec.vocab_size, spec.max_position) == ("LlamaForCausalLM", 512, 512)
    assert spec.eos_token_ids == (2, 0)
    assert spec.generation_config["pad_token_id"] == 0


def test_weights_are_counted_as_they_are_kept(tmp_path: Path) -> None:
    decoder = load(make_model(tmp_path, tie_word_embeddings=True), dtype=torch.float32)
    stored = sum(tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values())
    rotary_tables = 2 * 512 * 8 * 4
    assert decoder.weight_bytes == 4 * stored + rotary_tables


def test_a_tied_head_that_is_stored_all_the_same_is_no_problem(tmp_path: Path) -> None:
    folder = make_model(tmp_path, tie_word_embeddings=True)
    before = logits(load(folder))
    with_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert torch.equal(logits(load(folder)), before)


def test_the_frequencies_that_older_checkpoints_hold_are_no_problem(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    before = logits(load(folder))
    with_tensors(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert torch.equal(logits(load(folder)), before)


CORRUPTIONS: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "missing": (
        lambda t: t.pop("model.layers.1.mlp.up_proj.weight"),
        r"missing: model\.layers\.1\.mlp\.up_proj\.weight",
    ),
    "unknown": (
        lambda t: t.update({"model.layers.0.self_attn.sinks": torch.ones(4)}),
        r"not part of this architecture: model\.layers\.0\.self_attn\.sinks",
    ),
    "bias that the config denies": (
        lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}),
        r"not part of this architecture: model\.layers\.0\.self_attn\.q_proj\.bias",
    ),
    "shape": (
        lambda t: t.update({"model.norm.weight": torch.ones(63)}),
        r"of another shape: model\.norm\.weight \(63,\) instead of \(64,\)",
    ),
}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(corruption: str, tmp_path: Path) -> None:
    change, message = CORRUPTIONS[corruption]
    folder = with_tensors(make_model(tmp_path), change)
    with pytest.raises(Unsupported, match=message):
        load(folder)


def test_a_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    folder = make_model(tmp_path, tie_word_embeddings=True)
    with_tensors(folder, lambda t: t.update({"lm_head.weight": torch.ones(512, 64)}))
    with pytest.raises(Unsupported, match=r"ties lm_head\.weight to model\.embed_tokens\.weight"):
        load(folder)


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "architecture": (
        lambda c: c.update(architectures=["MambaForCausalLM"]),
        "MambaForCausalLM is not supported; Aril serves LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3",
    ),
    "quantisation": (
        lambda c: c.update(quantization_config={"quant_method": "aqlm", "bits": 4}),
        "quantised by 'aqlm'",
    ),
    "activation": (lambda c: c.update(hidden_act="gelu"), "hidden_act 'gelu'"),
    "rope": (lambda c: c.update(rope_parameters={"rope_type": "proportional"}), "no RoPE scaling 'proportional'"),
    "rope field": (lambda c: c.update(rope_parameters={"rope_type": "linear"}), "factor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_served_is_refused_before_a_weight_is_looked_for(case: str, tmp_path: Path) -> None:
    change, message = REFUSED[case]
    folder = with_config(make_model(tmp_path), change)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").touch()
    with pytest.raises(Unsupported, match=message):
        load(folder)


ASKED_TOO_MUCH: dict[str, tuple[dict[str, Any], type[ArilError], str]] = {
    "length": ({"max_model_len": 513}, InvalidRequest, "max_model_len 513 is over the 512 positions"),
    "dtype": ({"dtype": "int8"}, InvalidRequest, "no dtype 'int8'; there are auto, float32, float16, bfloat16"),
    "backend": ({"attention_backend": "flash"}, Unsupported, "no attention backend 'flash'; there are auto, paged"),
    "method": (
        {"quantization": "int9"},
        Unsupported,
        "--quantization int9: there is no such method; int8, int4, fp8 round a 16-bit model, and .* auto-round, awq,",
    ),
}


@pytest.mark.parametrize("case", ASKED_TOO_MUCH)
def test_what_cannot_be_had_is_refused_with_what_can(case: str, tmp_path: Path) -> None:
    asked, error, message = ASKED_TOO_MUCH[case]
    with pytest.raises(error, match=message) as caught:
        load(make_model(tmp_path), **asked)
    assert caught.value.param in {*asked}


def test_the_log_names_the_kernels_that_compute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "aril.models.loader"):
        load(make_model(tmp_path))
    name = library().variant if "native" in linear.providers() else "torch"
    assert f" kernels={name} " in caplog.text


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = make_model(tmp_path, shard_size="100KB")
    lost = sorted(folder.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(NotFound, match=lost.name):
        load(folder)


def load(folder: Path, *, dtype: torch.dtype | str = torch.float32, **asked: Any) -> Decoder:
    return load_model(locate(str(folder)), dtype=dtype, device=torch.device("cpu"), **asked)


def logits(decoder: Decoder) -> Tensor:
    return Pages(decoder).run({"row": some_tokens(20, seed=0)})["row"]


def with_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def with_tensors(folder: Path, change: Callable[[Tensors], object]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def pickle_weights(folder: Path, *, shards: int, zipped: bool) -> None:
    """Replace the safetensors file by what torch.save writes."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if shards == 1:
        torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        return
    homes = {name: f"pytorch_model-{at % shards}.bin" for at, name in enumerate(tensors)}
    for home in set(homes.values()):
        torch.save({name: tensors[name] for name in tensors if homes[name] == home}, folder / home)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": homes}))
