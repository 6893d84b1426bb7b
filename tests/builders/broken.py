"""Checkpoints that are whole, written on the spot, and the tools to break one thing of a copy."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from builders.bnb import four_bit
from builders.gguf import make_gguf
from builders.models import make_model
from builders.quantised import Tensors, awq_tensors, gptq_tensors, groups_of, make_quantised, rounded

MODULE = "model.layers.1.mlp.down_proj"  # the one that is broken: 160 inputs, 64 outputs
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GROUP = 32
Change = Callable[[Path], None]  # breaks the checkpoint in a folder, or a GGUF file


@dataclass(frozen=True, slots=True)
class Broken:
    """A copy of the checkpoint `base` with one thing wrong, and what the refusal must name."""

    base: str
    change: Change
    names: tuple[str, ...]
    asked: dict[str, Any] = field(default_factory=dict)  # of the loader


def make_bases(root: Path) -> dict[str, Path]:
    """One whole tiny checkpoint of each kind, by name."""
    plain = make_model(root / "plain")
    bases = {
        "plain": plain,
        "sharded": make_model(root / "sharded", shard_size="200KB"),
        "bin": _pickled(root / "bin", plain),
        "gguf": make_gguf(root / "tiny.gguf", plain, "Q4_0"),
    }
    for kind, (config, pack) in PACKED.items():
        make_quantised(root / kind, plain, config, pack)
        bases[kind] = root / kind
    return bases


def read_all(path: Path) -> Tensors:
    """The tensors of a file, apart from it: it may be written anew."""
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def copy_of(base: Path, folder: Path) -> Path:
    """The same in `folder`."""
    if base.is_dir():
        return Path(shutil.copytree(base, folder / base.name))
    return Path(shutil.copy(base, folder / base.name))


def tensors(change: Callable[[Tensors], object]) -> Change:
    """Other tensors in a whole file."""

    def breaking(folder: Path) -> None:
        found = read_all(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS, metadata={"format": "pt"})

    return breaking


def without(suffix: str, module: str = MODULE) -> Change:
    """One tensor less."""
    return tensors(lambda found: found.pop(f"{module}.{suffix}"))


def other(suffix: str, change: Callable[[Tensor], Tensor], module: str = MODULE) -> Change:
    """One tensor changed."""
    name = f"{module}.{suffix}"
    return tensors(lambda found: found.update({name: change(found[name]).contiguous()}))


def spoilt(suffix: str, value: float, module: str = MODULE) -> Change:
    """One number of a tensor is another."""

    def change(tensor: Tensor) -> Tensor:
        wide = tensor.float() if tensor.is_floating_point() else tensor.clone()
        wide.view(-1)[3 if tensor.numel() > 3 else 0] = value
        return wide.to(tensor.dtype)

    return other(suffix, change, module)


def config(**changes: Any) -> Change:
    """Other fields in config.json."""

    def breaking(folder: Path) -> None:
        edit_json(folder / "config.json", lambda found: found.update(changes))

    return breaking


def quantised(**changes: Any) -> Change:
    """Other fields in config.json's quantization_config."""

    def breaking(folder: Path) -> None:
        edit_json(folder / "config.json", lambda found: found["quantization_config"].update(changes))

    return breaking


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the object in a file."""
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def file(name: str, content: str | bytes) -> Change:
    """Another file of that name."""
    return lambda folder: _write(folder / name, content)


def header(change: Callable[[dict[str, Any]], object]) -> Change:
    """Another header in front of the same data."""

    def breaking(folder: Path) -> None:
        whole = (folder / WEIGHTS).read_bytes()
        end = 8 + struct.unpack_from("<Q", whole)[0]
        found = json.loads(whole[8:end])
        change(found)
        _write(folder / WEIGHTS, header_bytes(json.dumps(found).encode()) + whole[end:])

    return breaking


def facts(name: str = f"{MODULE}.qweight", **changes: Any) -> Change:
    """Other facts of one tensor in the header."""
    return header(lambda found: found[name].update(changes))


def header_bytes(text: bytes, length: int | None = None) -> bytes:
    """A header as it lies in a file; `length` is what it claims."""
    return struct.pack("<Q", len(text) if length is None else length) + text


def cut(num_bytes: int) -> Change:
    """The end of the file is missing; a negative number adds to it."""

    def breaking(path: Path) -> None:
        weights = path / WEIGHTS if path.is_dir() else path
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-num_bytes] if num_bytes > 0 else whole + bytes(-num_bytes))

    return breaking


def index(change: Callable[[dict[str, str]], object]) -> Change:
    """Another list of shards."""
    return lambda folder: edit_json(folder / INDEX, lambda found: change(found["weight_map"]))


def first_shard(folder: Path) -> Path:
    """One of several files."""
    return sorted(folder.glob("model-*.safetensors"))[0]


def twice(folder: Path) -> None:
    """A tensor of the first shard stands in the last one too."""
    first, last = first_shard(folder), sorted(folder.glob("model-*.safetensors"))[-1]
    name, tensor = next(iter(read_all(first).items()))
    save_file({**read_all(last), name: tensor}, last, metadata={"format": "pt"})


def _write(path: Path, content: str | bytes) -> None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def _pickled(folder: Path, plain: Path) -> Path:
    shutil.copytree(plain, folder)
    torch.save(read_all(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    return folder


Packed = tuple[Tensors, Tensor]


def _gptq(module: str, weight: Tensor) -> Packed | None:
    if "layers" not in module:
        return None
    codes = rounded(weight, 4, groups_of(weight.shape[1], GROUP, act_order=True), symmetric=False)
    return gptq_tensors(codes), codes.dense()


def _awq(module: str, weight: Tensor) -> Packed | None:
    if "layers" not in module:
        return None
    codes = rounded(weight, 4, groups_of(weight.shape[1], GROUP), symmetric=False)
    return awq_tensors(codes, "gemm"), codes.dense()


def _fp8(module: str, weight: Tensor) -> Packed | None:
    if "layers" not in module:
        return None
    scale = weight.abs().max() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale.reshape(1)}, codes.float() * scale


def _compressed(module: str, weight: Tensor) -> Packed | None:
    if "layers" not in module:
        return None
    codes = rounded(weight, 4, groups_of(weight.shape[1], GROUP), symmetric=True)
    packed = {
        "weight_packed": gptq_tensors(codes)["qweight"].t().contiguous(),  # the same stream, along the rows
        "weight_scale": codes.scales.t().contiguous(),
        "weight_shape": torch.tensor(weight.shape),
    }
    return packed, codes.dense()


CT_GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP},
}
CT_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": CT_GROUP},
    "ignore": ["lm_head"],
    "quantization_status": "compressed",
    "version": "0.19.0",
}
PACKED: dict[str, tuple[dict[str, Any], Callable[[str, Tensor], Packed | None]]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "desc_act": True}, _gptq),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}, _awq),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]}, _fp8),
    "ct": (CT_CONFIG, _compressed),
    "bnb": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        lambda module, weight: four_bit(weight) if "layers" in module else None,
    ),
}
