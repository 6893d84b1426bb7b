"""fp8, int8 and int4-rtn with llm-compressor: layer by layer from file to file, without building the network.

Each layer is one file of the result, which appears whole; a job that starts again goes on behind the last of them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.utils.safetensors_load import update_safetensors_index
from llmcompressor.entrypoints.model_free.converter import ModelFreePtqConverter
from llmcompressor.entrypoints.model_free.save_utils import update_config
from llmcompressor.entrypoints.model_free.validate import validate_config
from safetensors import safe_open
from safetensors.torch import save_file

LAYER = re.compile(r"\blayers\.(\d+)\.")
NOT_MATRICES = ("lm_head", "re:.*embed_tokens$")  # a model's head and table stay in 16 bits
PRESETS = {"fp8": "FP8_DYNAMIC", "int8": "W8A8"}
PAPERS = ("*.json", "*.jinja", "*.txt", "tokenizer.model")


def quantize(job: dict[str, Any], tell: Callable[..., None]) -> None:
    """Write `job["out"]`; told are the number of layers and each one that is done."""
    base, out = Path(job["model"]), Path(job["out"])
    converter, config = _converter(job)
    parts = _parts(base)
    names = list(parts)
    tell("start", layers=len(names))
    placed: dict[str, str] = {}
    total = 0
    for at, name in enumerate(names):
        file = out / f"model-{at + 1:05}-of-{len(names):05}.safetensors"
        if not file.exists():
            _write(converter.process(_tensors(parts[name])), file)
        with safe_open(file, "pt") as opened:
            placed |= dict.fromkeys(opened.keys(), file.name)
        total += file.stat().st_size
        tell("layer", name=name)
    _papers(base, out)
    update_config(out, config)
    update_safetensors_index(out, total, placed)


def _converter(job: dict[str, Any]) -> tuple[ModelFreePtqConverter, QuantizationConfig]:
    scheme = job["scheme"]
    named: Any = PRESETS.get(scheme["method"])
    if named is None:
        size = scheme["group_size"]
        weights = QuantizationArgs(
            num_bits=scheme["bits"],
            type="int",
            strategy="channel" if size == -1 else "group",
            group_size=None if size == -1 else size,
            symmetric=scheme["sym"],
            dynamic=False,
        )
        named = QuantizationScheme(targets=["Linear"], weights=weights)
    config = validate_config(None, named, NOT_MATRICES)
    return ModelFreePtqConverter(config), config


def _parts(base: Path) -> dict[str, dict[str, Path]]:
    """The tensors of each layer, and those outside of all, with the files they are in."""
    found: dict[str, dict[str, Path]] = defaultdict(dict)
    for file in _files(base):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118  # not a dict
                layer = LAYER.search(name)
                found[f"layer {layer[1]}" if layer else "the rest"][name] = file
    return dict(sorted(found.items(), key=lambda part: (part[0] == "the rest", len(part[0]), part[0])))


def _files(base: Path) -> list[Path]:
    index = base / "model.safetensors.index.json"
    if index.exists():
        return [base / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return [base / "model.safetensors"]


def _tensors(part: dict[str, Path]) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for file in sorted(set(part.values())):
        with safe_open(file, "pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name, home in part.items() if home == file}
    return tensors


def _write(tensors: dict[str, Any], file: Path) -> None:
    new = file.with_suffix(".new")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, new, metadata={"format": "pt"})
    new.rename(file)


def _papers(base: Path, out: Path) -> None:
    for pattern in PAPERS:
        for file in base.glob(pattern):
            if not file.name.endswith(".index.json"):
                shutil.copyfile(file, out / file.name)
