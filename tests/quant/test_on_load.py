"""A 16-bit model is rounded once when it is loaded as int8, int4 or fp8: to the nearest code, kept, and read again."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from aril.core.errors import DoesNotFit, Unsupported
from aril.models.loader import load_model, plan_model
from aril.models.requantise import requantised
from aril.models.source import Source, locate
from aril.quant.on_load import ROUNDINGS
from builders.gguf import make_gguf
from builders.mixed import assert_mixed_batch_follows, plain_model
from builders.models import make_model
from builders.pages import differences
from safetensors.torch import load_file, save_file
from torch import Tensor

BASE = {"hidden_size": 64, "intermediate_size": 160}
WORST = {"int8": 0.02, "int4": 0.2, "fp8": 0.1}  # of a weight's own size, root mean square


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, but for the kernels that were compiled before."""
    home = Path(os.environ.get("ARIL_CACHE") or "~/.cache/aril").expanduser()
    new = tmp_path / "cache"
    new.mkdir()
    (home / "native").mkdir(parents=True, exist_ok=True)
    (new / "native").symlink_to(home / "native")
    monkeypatch.setenv("ARIL_CACHE", str(new))
    return new


@pytest.fixture
def base(tmp_path: Path) -> Source:
    return locate(str(make_model(tmp_path / "base", **BASE)))


def weights(source: Source) -> dict[str, Tensor]:
    return load_file(source.path / "model.safetensors")


def rounded(weight: Tensor, method: str) -> Tensor:
    """What the nearest codes of a weight mean, worked out without the code that packs them."""
    if method == "fp8":
        scale = (weight.abs().amax(1, keepdim=True) / 448).bfloat16().float()
        return (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    if method == "int8":
        scale = (weight.abs().amax(1, keepdim=True) / 127).bfloat16().float()
        return (weight / scale).round().clamp(-128, 127) * scale
    groups = weight.view(len(weight), -1, 32)
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 15).bfloat16().float()
    zero = (-low / scale).round()
    return (((groups / scale).round() + zero).clamp(0, 15) - zero).mul(scale).view_as(weight)


def dense_of(source: Source, method: str, but: Sequence[str] = ()) -> dict[str, Tensor]:
    """The weights of the base's Linears after rounding, by module path."""
    found = {name.removesuffix(".weight"): weight for name, weight in weights(source).items() if "_proj" in name}
    return {name: rounded(weight, method) for name, weight in found.items() if name not in but}


@pytest.mark.parametrize("method", ROUNDINGS)
def test_a_rounded_model_and_adapters_on_it_answer_as_peft_on_the_nearest_codes(
    method: str, base: Source, tmp_path: Path
) -> None:
    dense = dense_of(base, method)
    original = weights(base)
    assert all((w - original[f"{n}.weight"]).std() < WORST[method] * w.std() for n, w in dense.items())
    reference = plain_model(base.path, dense)
    decoder = load_model(base, dtype=torch.float32, device=torch.device("cpu"), quantization=method)
    assert differences(decoder, reference, lengths=(20, 7)) < 1e-3
    assert_mixed_batch_follows(reference, base.path, tmp_path, quantization=method)


@pytest.mark.parametrize("method", ROUNDINGS)
def test_a_tied_gguf_file_in_16_bits_is_rounded_too(method: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "base", tie_word_embeddings=True, **BASE)
    file = make_gguf(tmp_path / "tiny.gguf", folder, "F32")
    reference = plain_model(folder, dense_of(locate(str(folder)), method))
    decoder = load_model(locate(str(file)), dtype=torch.float32, device=torch.device("cpu"), quantization=method)
    assert differences(decoder, reference, lengths=(20, 7)) < 1e-3


def test_the_second_start_reads_what_the_first_one_kept(base: Source) -> None:
    first = requantised(base, "int4")
    written = {file.name: file.stat().st_mtime_ns for file in first.path.iterdir()}
    assert requantised(base, "int4") == first
    assert {file.name: file.stat().st_mtime_ns for file in first.path.iterdir()} == written


def test_what_is_kept_is_a_whole_model_folder(base: Source) -> None:
    kept = requantised(base, "int4").path
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= set(os.listdir(kept))
    assert json.loads((kept / "config.json").read_text())["dtype"] == "float32"
    assert load_model(locate(str(kept)), device=torch.device("cpu")).spec.dtype == torch.float32


def test_another_model_in_the_same_place_is_rounded_anew_even_when_its_files_look_the_same(base: Source) -> None:
    first, tensors = requantised(base, "int8"), {name: 2 * tensor for name, tensor in weights(base).items()}
    before = (base.path / "model.safetensors").stat()
    save_file(tensors, base.path / "model.safetensors", metadata={"format": "pt"})
    os.utime(base.path / "model.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert requantised(base, "int8").path != first.path


@pytest.mark.parametrize("method", ROUNDINGS)
def test_what_would_be_made_is_known_without_making_it(method: str, base: Source, cache: Path) -> None:
    plan = plan_model(base, device=torch.device("meta"), quantization=method)
    assert not (cache / "quantised").exists()
    made = plan_model(requantised(base, method), device=torch.device("meta"))
    assert plan.checkpoint.stored == made.checkpoint.stored
    assert plan.opened.quantization == made.opened.quantization


def test_a_model_in_shards_is_rounded_whole(tmp_path: Path) -> None:
    whole, parts = make_model(tmp_path / "whole", **BASE), make_model(tmp_path / "parts", shard_size="100KB", **BASE)
    kept = [weights(requantised(locate(str(folder)), "int4")) for folder in (whole, parts)]
    assert kept[0].keys() == kept[1].keys()
    assert all(torch.equal(each, kept[1][name]) for name, each in kept[0].items())


def test_matrices_that_groups_do_not_divide_stay_as_they_are(tmp_path: Path) -> None:
    base = locate(str(make_model(tmp_path / "base", hidden_size=64, intermediate_size=144)))
    kept = requantised(base, "int4")
    ignored = json.loads((kept.path / "config.json").read_text())["quantization_config"]["ignore"]
    assert ignored == ["lm_head", *(f"model.layers.{layer}.mlp.down_proj" for layer in range(3))]
    reference = plain_model(base.path, dense_of(base, "int4", but=ignored))
    decoder = load_model(base, dtype=torch.float32, device=torch.device("cpu"), quantization="int4")
    assert differences(decoder, reference, lengths=(20, 7)) < 1e-3


def test_nothing_is_kept_of_a_model_that_holds_no_numbers(base: Source, cache: Path) -> None:
    tensors = weights(base)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(tensors, base.path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Unsupported, match=r"layers\.1\.mlp\.up_proj\.weight holds numbers that are not finite"):
        requantised(base, "int4")
    assert not [each for each in (cache / "quantised").iterdir() if each.is_dir()]


def test_a_quantised_gguf_file_is_refused(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf", make_model(tmp_path / "base"), "Q8_0")
    with pytest.raises(Unsupported, match=r"--quantization int4 rounds 16-bit.*quantised already \(GGUF's Q8_0\)"):
        load_model(locate(str(file)), device=torch.device("cpu"), quantization="int4")


def test_a_checkpoint_of_another_format_is_refused_before_a_weight_is_read(base: Source) -> None:
    config = json.loads((base.path / "config.json").read_text())
    (base.path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(Unsupported, match=r"--quantization fp8 rounds 16-bit.*quantised already \(gptq\)"):
        load_model(base, device=torch.device("cpu"), quantization="fp8")


def test_an_fp8_checkpoint_is_what_the_flag_says(base: Source) -> None:
    config = json.loads((base.path / "config.json").read_text())
    (base.path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    assert requantised(base, "fp8") == base


def test_a_cache_that_cannot_be_written_is_named(base: Source, cache: Path) -> None:
    (cache / "quantised").write_text("in the way")
    with pytest.raises(DoesNotFit, match=r"--quantization int4 keeps what it makes in .*quantised.*set ARIL_CACHE"):
        requantised(base, "int4")
