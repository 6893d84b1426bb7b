"""Named tensors on disk, read one at a time: safetensors and PyTorch's own files, whole or sharded.

What the names mean is not known here. Nothing is unpickled but tensors, and every refusal names the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.errors import NotFound, Unsupported
from ..core.shortage import shortage
from ..quant.base import Stored
from .safetensors_header import DTYPES, fault_of
from .weight_files import WeightFiles, listed_files


class Checkpoint(Protocol):
    """The tensors of a model; threads may read at the same time."""

    @property
    def stored(self) -> Mapping[str, Stored]:
        """Every tensor's shape and type, known without reading weights."""

    def read(self, name: str) -> Tensor:
        """One tensor on the CPU; it may lie in the file's memory, so copy it."""

    def file_of(self, name: str) -> Path:
        """Where a tensor lies, for messages."""


class SafetensorsCheckpoint:
    """model.safetensors, or the shards that an index lists."""

    def __init__(self, files: WeightFiles) -> None:
        opened = {path: _opened(path) for path in files.paths}
        self._files = files.placed({path: file.keys() for path, file in opened.items()})
        self._home = {name: opened[path] for name, path in self._files.items()}
        self.stored = {name: _stored(file.get_slice(name)) for name, file in self._home.items()}

    def read(self, name: str) -> Tensor:
        try:
            tensor: Tensor = self._home[name].get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            if shortage(error):
                raise
            raise Unsupported(f"{self._files[name]}: tensor {name} cannot be read: {error}", param="model") from error
        return tensor

    def file_of(self, name: str) -> Path:
        return self._files[name]


class TorchCheckpoint:
    """pytorch_model.bin, or the shards that an index lists; tensors only, never other objects."""

    def __init__(self, files: WeightFiles) -> None:
        opened = {path: _unpickled(path) for path in files.paths}
        self._files = files.placed(opened)
        self._tensors = {name: opened[path][name] for name, path in self._files.items()}
        self.stored = {name: Stored(tuple(t.shape), t.dtype) for name, t in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def file_of(self, name: str) -> Path:
        return self._files[name]


def open_checkpoint(folder: Path) -> Checkpoint:
    """The weights in a Hugging Face folder; raises NotFound with what was looked for, Unsupported for a broken file."""
    safetensors = listed_files(folder, ".safetensors")
    if safetensors:
        return SafetensorsCheckpoint(safetensors)
    pickled = listed_files(folder, ".bin")
    if pickled:
        return TorchCheckpoint(pickled)
    raise NotFound(
        f"no weights in {folder}: looked for model.safetensors and pytorch_model.bin, each whole or as shards with an "
        f"index (.index.json), for gptq_model*.safetensors, and for one .gguf file",
        param="model",
    )


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        if shortage(error):
            raise
        raise Unsupported(
            f"{path} is not a whole safetensors file: {fault_of(path) or error}", param="model"
        ) from error


def _stored(tensor: Any) -> Stored:
    kind = tensor.get_dtype()
    return Stored(tuple(tensor.get_shape()), DTYPES.get(kind, kind))


def _unpickled(path: Path) -> dict[str, Tensor]:
    try:
        state = _load(path)
    except Exception as error:  # what unpickling raises depends on the byte at which it stumbles
        if isinstance(error, Unsupported) or shortage(error):
            raise
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
