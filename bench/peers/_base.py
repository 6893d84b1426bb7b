"""The base in the forms that peers read: converted once, and adapters made for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ...models.locked import locked
from ...models.source import locate
from ..random_adapters import make, targets_of
from ..worker import Worker
from ._environment import folder_of
from ._peer import Base

MAX_MODEL_LEN = 2048  # told to all; a longer prompt is in no case
SPREAD = 0.05  # of the adapters' numbers: enough to change what is said, so that a wrong adapter shows


def base_of(python: Path, model: str | None = None) -> Base:
    """The demo base as .gguf and as a folder that transformers under `python` writes once; or the folder `model`."""
    if model is not None:
        return _read(Path(model), Path(model))
    gguf, folder = locate("demo").path, folder_of("base")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / "base.lock"):
        if not folder.exists():
            _convert(python, gguf, folder)
    return _read(folder, gguf)


def _read(folder: Path, gguf: Path) -> Base:
    config = json.loads((folder / "config.json").read_text())
    return Base(folder, gguf, {}, 0, min(MAX_MODEL_LEN, config["max_position_embeddings"]), config["vocab_size"])


def _convert(python: Path, gguf: Path, folder: Path) -> None:
    job = {"path": str(gguf.parent), "gguf_file": gguf.name, "dtype": "bfloat16", "threads": None}
    partial = folder.with_suffix(".partial")
    with Worker.foreign(python, "transformers_worker", job, {"HF_HUB_OFFLINE": "1"}) as worker:
        worker.ask("save", folder=str(partial))
    partial.replace(folder)


def adapters_in(folder: Path, base: Base, shape: tuple[int, int], kv_bytes: int) -> Base:
    """The base with (count, rank) random adapters on all its linears, written into `folder`, and the KV to ask for."""
    count, rank = shape
    if not count:
        return replace(base, kv_bytes=kv_bytes)
    modules = targets_of(str(base.folder)).modules
    made = [make(folder / f"random-{at}", modules, rank=rank, seed=at, spread=SPREAD) for at in range(count)]
    return replace(base, kv_bytes=kv_bytes, adapters={path.name: str(path) for path in made})


def kv_bytes_of_token(base: Base) -> int:
    """Keys and values of one token in two bytes a number."""
    config = json.loads((base.folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    return int(config["num_hidden_layers"] * 2 * config.get("num_key_value_heads", heads) * width * 2)
