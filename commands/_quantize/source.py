"""What is quantised: a 16-bit folder in Hugging Face's form; anything else that Aril reads is written as one first."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import Unsupported

if TYPE_CHECKING:
    from ...models.opened import Opened
    from ...models.source import Source
    from ...quant.base import Stored

IN_A_LAYER = re.compile(r"(?:^|\.)layers\.\d+\..+\.weight$")
DONE = "written"  # stands in a folder that was written to its end


def matrices(stored: Mapping[str, Stored]) -> dict[str, tuple[int, int]]:
    """What the tools quantise: the matrices inside layers, by module path, as (outputs, inputs)."""
    found: dict[str, tuple[int, int]] = {}
    for name, each in stored.items():
        if IN_A_LAYER.search(name) and len(each.shape) == 2:
            found[name.removesuffix(".weight")] = (each.shape[0], each.shape[1])
    return found


def refuse_quantised(source: Source, opened: Opened) -> None:
    """Raise Unsupported for a folder that is quantised already. (A GGUF file is dequantised, and the card says so.)"""
    if source.kind == "folder" and opened.quantization is not None:
        method = opened.quantization.get("quant_method") or "a tool that it does not name"
        raise Unsupported(
            f"{source.path} is quantised already, by {method}; give the 16-bit model it was made from", param="model"
        )


def is_sixteen_bit(source: Source) -> bool:
    """Whether the tools can read it as it lies there."""
    return source.kind == "folder" and any(source.path.glob("model*.safetensors"))


def write_base(opened: Opened, source: Source, folder: Path) -> Path:
    """The model as a bfloat16 folder; one that an interrupted call wrote to the end is taken as it is."""
    if (folder / DONE).is_file():
        return folder
    from ...bench.shards import ShardWriter
    from ...engine.text import read_tokenizer
    from ...models.plain import plain_config, plain_tensors

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ShardWriter(folder) as writer:
        for name, tensor in plain_tensors(opened):
            writer.add({name: tensor})
    read_tokenizer(source).save_pretrained(folder)
    _write_json(folder / "config.json", plain_config(opened))
    _write_json(folder / "generation_config.json", dict(opened.generation_config) or _generation(opened))
    (folder / DONE).touch()
    return folder


def _generation(opened: Opened) -> dict[str, object]:
    return {"eos_token_id": list(opened.eos_token_ids()), "bos_token_id": opened.config.bos_token_id}


def _write_json(path: Path, fields: Mapping[str, object]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
