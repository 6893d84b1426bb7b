"""The checkpoints that the benches make: whole files of the right form, that hold the numbers they were made from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.bench.encodings import ENCODINGS, encoding
from aril.bench.perplexity import read, windows_of
from aril.bench.shards import ShardWriter
from aril.bench.synthetic import LINEAR, loaded, random_llama, write
from aril.core.errors import InvalidRequest
from builders.models import make_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
}
GROUP = 32
ROUNDS_ACTIVATIONS = ("ct-w8a8", "fp8", "fp8-block")
ROUNDED = 0.02  # how far that may move a loss of this model


def fields(words: Tensor, bits: int) -> Tensor:
    """The unsigned fields of each row of words: [R, W * 32 / bits]."""
    shifts = torch.arange(0, 32, bits)
    return ((words.long().unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).flatten(1)


def read_gptq(t: dict[str, Tensor]) -> Tensor:
    zeros = fields(t["qzeros"], 4) + 1  # [G, N]
    codes = fields(t["qweight"].t(), 4).t()  # [K, N]
    group = t["g_idx"].long()
    return ((codes - zeros[group]) * t["scales"].float()[group]).t()


def read_awq(t: dict[str, Tensor]) -> Tensor:
    places = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # column i of eight is nibble places[i]

    def columns(words: Tensor) -> Tensor:
        return fields(words, 4).unflatten(1, (-1, 8))[:, :, places].flatten(1)

    def spread(groups: Tensor) -> Tensor:
        return groups.repeat_interleave(GROUP, 0)

    return ((columns(t["qweight"]) - spread(columns(t["qzeros"]))) * spread(t["scales"].float())).t()


def read_packed(t: dict[str, Tensor]) -> Tensor:
    k = int(t["weight_shape"][1])
    bits = 32 * t["weight_packed"].shape[1] // k
    scales = t["weight_scale"].float()
    return (fields(t["weight_packed"], bits) - (1 << bits - 1)) * scales.repeat_interleave(k // scales.shape[1], 1)


def read_blocks(t: dict[str, Tensor]) -> Tensor:
    n, k = t["weight"].shape
    return t["weight"].float() * t["weight_scale_inv"].repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]


READERS = {
    "bf16": (lambda t: t["weight"].float(), 0.01),
    "gptq-int4": (read_gptq, 0.2),
    "awq-int4": (read_awq, 0.2),
    "ct-w4a16": (read_packed, 0.2),
    "ct-w8a16": (read_packed, 0.02),
    "ct-w8a8": (lambda t: t["weight"].float() * t["weight_scale"].float(), 0.02),
    "fp8": (lambda t: t["weight"].float() * t["weight_scale"], 0.05),
    "fp8-block": (read_blocks, 0.05),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_format_holds_the_matrix_as_nearly_as_its_bits_can(name: str) -> None:
    weight = torch.randn(160, 192, generator=torch.Generator().manual_seed(0))
    read, tolerance = READERS[name]
    found = read(encoding(name, GROUP).tensors(weight))
    assert ((found - weight).norm() / weight.norm()) < tolerance


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "bf16"])
def test_a_checkpoint_of_a_format_is_read_as_the_matrices_it_holds(name: str, tmp_path: Path) -> None:
    base = random_llama(seed=3, **TINY)
    packed = write(base, encoding(name, GROUP), tmp_path / name)
    reader, _ = READERS[name]

    def dense() -> Iterator[tuple[str, Tensor]]:
        for path, tensor in base.tensors():
            held = encoding(name if LINEAR.match(path) else "bf16", GROUP).tensors(tensor.float())
            yield path, reader(held) if LINEAR.match(path) else held["weight"].float()

    plain = tmp_path / "dense"
    plain.mkdir()
    save_file({path: tensor.contiguous() for path, tensor in dense()}, plain / "model.safetensors")
    for file in (write(base, encoding("bf16", GROUP), tmp_path / "bf16")).glob("*.json"):
        shutil.copy(file, plain)
    windows = windows_of(str(packed), num_windows=2, window=30)
    ours, expected = (read(str(folder), windows, dtype="float32").losses for folder in (packed, plain))
    assert ours == pytest.approx(expected, abs=ROUNDED if name in ROUNDS_ACTIVATIONS else 1e-4)


def test_the_same_seed_is_the_same_model_in_every_format(tmp_path: Path) -> None:
    base = random_llama(seed=5, **TINY)
    plain = load_file(write(base, encoding("bf16", GROUP), tmp_path / "bf16") / "model.safetensors")
    packed = load_file(write(base, encoding("gptq-int4", GROUP), tmp_path / "gptq") / "model.safetensors")
    path = "model.layers.1.mlp.up_proj."
    read = read_gptq({name.removeprefix(path): t for name, t in packed.items() if name.startswith(path)})
    assert (read - plain[path + "weight"].float()).norm() < 0.2 * plain[path + "weight"].float().norm()
    assert torch.equal(packed["lm_head.weight"], plain["lm_head.weight"])


def test_a_random_model_and_its_tokenizer_open_in_transformers(tmp_path: Path) -> None:
    folder = write(random_llama(**TINY), encoding("bf16", GROUP), tmp_path)
    network, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == network.config.vocab_size == TINY["vocab_size"]
    assert tokenizer.decode(tokenizer.encode("a b, c")) == "a b, c"


def test_a_model_of_16_bits_keeps_its_numbers(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    folder = write(loaded(str(model)), encoding("bf16", GROUP), tmp_path / "out")
    before, after = load_file(model / "model.safetensors"), load_file(folder / "model.safetensors")
    assert {name: each.bfloat16().tolist() for name, each in before.items()} == {
        n: e.tolist() for n, e in after.items()
    }
    assert json.loads((folder / "config.json").read_text())["rope_theta"] == 5e5


def test_a_group_that_does_not_divide_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"down_proj has 96 inputs, which groups of 64 do not divide"):
        write(random_llama(**TINY), encoding("gptq-int4", 64), tmp_path)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no format 'int5'; there are bf16, gptq-int4"):
        encoding("int5", GROUP)


def test_tensors_go_to_shards_that_the_index_lists(tmp_path: Path) -> None:
    tensors = {f"t{at}": torch.full((100,), float(at)) for at in range(5)}
    with ShardWriter(tmp_path, shard_bytes=800) as writer:
        for name, tensor in tensors.items():
            writer.add({name: tensor})
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2000
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-0000{at}-of-00003.safetensors" for at in (1, 2, 3)]
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name])
