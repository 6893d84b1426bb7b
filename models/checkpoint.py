"""Named tensors on disk, read one at a time: safetensors and PyTorch's own files, whole or sharded.

What the names mean is not known here. Nothing is unpickled but tensors.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.errors import NotFound, Unsupported


class Checkpoint(Protocol):
    """The tensors of a model; threads may read at the same time."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor and its shape, known without reading weights."""

    def dtype(self, name: str) -> torch.dtype:
        """How a tensor is stored; for packed weights, what they are best unpacked to."""

    def read(self, name: str) -> Tensor:
        """One tensor on the CPU; it may lie in the file's memory, so copy it."""


class SafetensorsCheckpoint:
    """model.safetensors, or the shards that model.safetensors.index.json lists."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = [_opened(path) for path in files]
        self._home = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118  # not a dict
        self.shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in self._home.items()}

    def dtype(self, name: str) -> torch.dtype:
        return self.read(name).dtype

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._home[name].get_tensor(name)
        return tensor


class TorchCheckpoint:
    """pytorch_model.bin, or the shards that pytorch_model.bin.index.json lists; tensors only, never other objects."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._tensors: dict[str, Tensor] = {}
        for path in files:
            self._tensors |= _unpickled(path)
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def dtype(self, name: str) -> torch.dtype:
        return self._tensors[name].dtype

    def read(self, name: str) -> Tensor:
        return self._tensors[name]


def open_checkpoint(folder: Path) -> Checkpoint:
    """The weights in a Hugging Face folder; raises NotFound with what was looked for."""
    safetensors = _listed(folder, "model.safetensors")
    if safetensors:
        return SafetensorsCheckpoint(safetensors)
    pickled = _listed(folder, "pytorch_model.bin")
    if pickled:
        return TorchCheckpoint(pickled)
    raise NotFound(
        f"no weights in {folder}: looked for model.safetensors and pytorch_model.bin, each whole or as shards with an "
        f"index (.index.json), and for one .gguf file",
        param="model",
    )


def _listed(folder: Path, whole: str) -> list[Path]:
    """The files that hold the weights called `whole`, sharded or not; none if there are none."""
    index = folder / f"{whole}.index.json"
    if not index.is_file():
        return [folder / whole] if (folder / whole).is_file() else []
    names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise NotFound(f"{index} lists {', '.join(missing)}, which {folder} does not hold", param="model")
    return [folder / name for name in names]


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except SafetensorError as error:
        raise Unsupported(f"{path} is not a whole safetensors file: {error}", param="model") from error


def _unpickled(path: Path) -> dict[str, Tensor]:
    try:
        state = _load(path)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Unsupported(
            f"{path} cannot be read as tensors and nothing else ({first_line}); save it as safetensors", param="model"
        ) from error
    strangers = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if strangers:
        raise Unsupported(f"{path} holds more than tensors: {', '.join(strangers[:8])}", param="model")
    return state


def _load(path: Path) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # files from before torch 1.6 are no zip archives and cannot be mapped
        state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise Unsupported(f"{path} holds a {type(state).__name__}, not named tensors", param="model")
    return state
