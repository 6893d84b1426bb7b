"""What is said of a model without its weights is what loading would find, or why it would not load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from aril.core.platform import detect
from aril.models.facts import Inspection
from aril.models.inspect import inspect_model
from aril.models.loader import load_model
from aril.models.remote_header import write_header
from aril.models.source import locate
from aril.models.words import modules, ranges
from builders.gguf import make_gguf
from builders.models import make_model
from builders.quantised import gptq_tensors, groups_of, make_quantised, rounded
from safetensors.torch import load_file

CPU = detect("cpu")
NUM_PARAMETERS = 195_008  # of the tiny llama
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}


def look(path: Path, **asked: Any) -> Inspection:
    return inspect_model(locate(str(path)), CPU, **asked).facts


@pytest.mark.parametrize("form", FORMS)
def test_every_number_of_a_plain_checkpoint_is_a_parameter(form: str, tmp_path: Path) -> None:
    family, overrides = FORMS[form]
    folder = make_model(tmp_path, family, **overrides)
    found = look(folder)
    assert found.served
    assert found.network.num_parameters == sum(t.numel() for t in load_file(folder / "model.safetensors").values())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_foretold_to_the_byte_that_loading_takes(form: str, dtype: str, tmp_path: Path) -> None:
    family, overrides = FORMS[form]
    folder = make_model(tmp_path, family, hidden_size=128, intermediate_size=256, head_dim=32, **overrides)
    loaded = load_model(locate(str(folder)), dtype=dtype, device=torch.device("cpu"))
    assert look(folder, dtype=dtype).weight_bytes == loaded.weight_bytes


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "BF16"])
def test_the_weights_of_a_gguf_file_are_foretold(kind: str, tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf", make_model(tmp_path / "hf", hidden_size=128, intermediate_size=256), kind)
    loaded = load_model(locate(str(file)), device=torch.device("cpu"))
    assert look(file).weight_bytes == pytest.approx(loaded.weight_bytes, rel=0.02)


def test_the_weights_of_checkpoints_that_the_tools_wrote_are_foretold(shared_data: Path) -> None:
    for folder in sorted(path for path in (shared_data / "quantised").iterdir() if path.is_dir()):
        loaded = load_model(locate(str(folder)), device=torch.device("cpu"))
        assert look(folder).weight_bytes == pytest.approx(loaded.weight_bytes, rel=0.02), folder.name


@pytest.mark.parametrize("method", ["int8", "int4", "fp8"])
def test_what_rounding_on_load_would_give_is_foretold_and_not_made(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARIL_CACHE", str(tmp_path / "cache"))
    folder = make_model(tmp_path / "plain", hidden_size=128, intermediate_size=256, head_dim=32)
    found = look(folder, quantization=method)
    assert not (tmp_path / "cache" / "quantised").exists()
    assert (found.quantisation.method, found.quantisation.on_load) == ("none", method)
    loaded = load_model(locate(str(folder)), quantization=method, device=torch.device("cpu"))
    assert found.weight_bytes == pytest.approx(loaded.weight_bytes, rel=0.02)


def test_what_is_fp8_already_is_not_said_to_be_rounded(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    assert look(folder, quantization="fp8").quantisation.on_load is None


def test_the_header_is_enough(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "whole")
    hollow = Path(shutil.copytree(folder, tmp_path / "hollow"))
    weights = folder / "model.safetensors"
    write_header(hollow / weights.name, weights.stat().st_size, Content(weights))
    assert (hollow / weights.name).read_bytes() != weights.read_bytes()
    assert said(look(hollow)) == said(look(folder))


def test_quantised_modules_are_grouped_in_words_and_exceptions_stand_apart(tmp_path: Path) -> None:
    def pack(module: str, weight: torch.Tensor) -> Any:
        if "layers" not in module or module.endswith("0.mlp.down_proj"):
            return None
        bits, act_order = (8, False) if module.endswith("k_proj") else (4, True)
        codes = rounded(weight, bits, groups_of(weight.shape[1], 32, act_order), symmetric=True)
        return gptq_tensors(codes), codes.dense()

    base = make_model(tmp_path / "base")
    dynamic = {r"+:.*k_proj": {"bits": 8, "desc_act": False}, r"-:.*0\.mlp\.down_proj": {}}
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": True, "dynamic": dynamic}
    make_quantised(tmp_path / "packed", base, config, pack)
    found = look(tmp_path / "packed").quantisation
    assert (found.method, found.settings["group_size"]) == ("gptq", 32)
    assert {group.description: group.modules for group in found.groups} == {
        "GPTQ 4 bit, group 32, symmetric, act order": ("q,v,o,gate,up of layers 0-2", "down of layers 1-2"),
        "GPTQ 8 bit, group 32, symmetric": ("k of layers 0-2",),
        "not quantised": ("down of layer 0", "embed_tokens,lm_head"),
    }


def test_positions_are_those_of_the_rule(tmp_path: Path) -> None:
    found = look(make_model(tmp_path, rope_parameters=YARN, max_position_embeddings=256)).positions
    assert (found.scheme, found.rule, found.theta, found.factor) == ("RoPE", "yarn", 1e4, 4.0)
    assert (found.original, found.usual, found.longest) == (128, 512, 512)


def test_layers_with_another_attention_are_told_apart(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    folder = make_model(tmp_path, "qwen2", use_sliding_window=True, sliding_window=24, layer_types=kinds)
    assert {each.layers: each.window for each in look(folder).attention} == {"0,2": 24, "1": None}


def test_a_backend_that_does_not_fit_says_why(tmp_path: Path) -> None:
    found = look(make_model(tmp_path, num_attention_heads=4, num_key_value_heads=3, head_dim=16))
    assert (found.served, found.backends[0].fits) == (False, False)
    assert found.problem is not None
    assert "paged: 4 heads are no multiple of 3 kv heads" in found.problem


Change = Callable[[dict[str, Any]], object]
REFUSED: dict[str, tuple[Change, str, int | None]] = {
    "architecture": (
        lambda c: c.update(architectures=["MambaForCausalLM"]),
        "MambaForCausalLM is not supported",
        NUM_PARAMETERS,
    ),
    "quantisation": (
        lambda c: c.update(quantization_config={"quant_method": "aqlm"}),
        "quantised by 'aqlm'",
        NUM_PARAMETERS,
    ),
    "rope": (lambda c: c.update(rope_parameters={"rope_type": "proportional"}), "no RoPE scaling 'proportional'", None),
    "sizes that do not fit": (lambda c: c.update(hidden_size=96), "does not fit its config", None),
    "a size that is no number": (lambda c: c.update(num_hidden_layers="three"), "config", None),
    "a quantisation that is no object": (lambda c: c.update(quantization_config=[4]), "quantization_config", None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_is_not_served_is_described_all_the_same(case: str, tmp_path: Path) -> None:
    change, reason, num_parameters = REFUSED[case]
    folder = make_model(tmp_path)
    with_config(folder, change)
    found = look(folder)
    assert found.served is False
    assert found.problem is not None
    assert reason in found.problem
    assert found.network.vocab_size == 512
    assert num_parameters in (None, found.network.num_parameters)
    assert found.tokenizer.vocab_size == 512


def test_the_attention_of_a_strange_network_is_as_its_config_states_it(tmp_path: Path) -> None:
    with_config(make_model(tmp_path), REFUSED["architecture"][0])
    (found,) = look(tmp_path).attention
    assert (found.layers, found.heads, found.kv_heads, found.head_dim) == ("0-2", 4, 2, 16)


@pytest.mark.parametrize("lost", ["model.safetensors", "tokenizer.json"])
def test_a_file_that_is_missing_is_the_reason(lost: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    (folder / lost).unlink()
    found = look(folder)
    assert found.problem is not None
    assert lost in found.problem
    assert (found.architecture, found.network.num_parameters) == ("LlamaForCausalLM", NUM_PARAMETERS)


def test_a_gguf_file_of_another_network_is_described_by_its_metadata(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.add_block_count(7)
    writer.add_license("mit")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = look(tmp_path / "other.gguf")
    assert (found.served, found.architecture, found.network.num_layers) == (False, "mamba", 7)
    assert (found.licence.stated, found.licence.stated_in) == ("mit", "GGUF metadata")


def test_a_gguf_file_that_is_cut_short_is_described_by_what_is_left(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf", make_model(tmp_path / "hf"))
    file.write_bytes(file.read_bytes()[:-1000])
    found = look(file)
    assert found.problem is not None
    assert "tiny.gguf is not a whole GGUF file" in found.problem
    assert found.disk.num_bytes == file.stat().st_size


def test_the_licence_is_what_the_model_card_and_the_file_say(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: 'apache-2.0' # as ever\n---\nlicense: none\n")
    (folder / "LICENSE.txt").write_text("\n  Apache License\nVersion 2.0\n")
    found = look(folder).licence
    assert (found.stated, found.stated_in) == ("apache-2.0", "README.md")
    assert (found.file, found.first_line) == ("LICENSE.txt", "Apache License")


def test_remote_code_is_named_and_does_not_run(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    (folder / "configuration_x.py").write_text("raise SystemExit('it ran')\n")
    with_config(folder, lambda c: c.update(auto_map={"AutoConfig": "configuration_x.X"}, model_type="x"))
    found = look(folder)
    assert found.remote_code == ("config.json: AutoConfig = configuration_x.X",)
    assert found.problem is not None
    assert "transformers cannot read" in found.problem


def test_the_tokenizer_is_described_without_being_loaded(tmp_path: Path) -> None:
    found = look(make_model(tmp_path)).tokenizer
    assert (found.file, found.vocab_size, found.chat_template) == ("tokenizer.json", 512, True)
    assert found.special_tokens == {"bos": "<|endoftext|>", "eos": "<|im_end|>", "pad": "<|endoftext|>"}


def test_numbers_and_module_paths_come_in_few_words() -> None:
    assert ranges([3, 1, 2, 7, 9, 10]) == "1-3,7,9-10"
    paths = [f"model.layers.{at}.{name}" for at in range(3) for name in ("attn.q_proj", "attn.out", "mlp.out")]
    assert modules([*paths, "lm_head"]) == ("q,attn.out,mlp.out of layers 0-2", "lm_head")


class Content:
    """A file elsewhere, as far as it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, start: int, size: int) -> bytes:
        """The header only."""
        whole = self._path.read_bytes()
        end = 8 + int.from_bytes(whole[:8], "little")
        return whole[start : min(end, start + size)]


def said(found: Inspection) -> str:
    return repr(found).replace("hollow", "whole")


def with_config(folder: Path, change: Change) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
