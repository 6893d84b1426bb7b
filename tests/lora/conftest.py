"""A tiny base, and its Linears as records that adapters can be hooked on: q, k and v in one, as networks fuse them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.lora.adapter import AdapterRef
from aril.lora.delta import Delta
from aril.lora.fingerprint import Fingerprint
from aril.lora.manager import LoraManager
from aril.lora.store import content_digest
from aril.lora.validate import TargetSpec
from builders.adapters import load_base
from builders.models import make_model

FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
}
PLAIN = {"o": ("self_attn.o_proj",), "down": ("mlp.down_proj",)}


@dataclass(frozen=True)
class Part:
    """One matrix of the checkpoint."""

    name: str
    start: int
    size: int


@dataclass
class AdaptedLinear:
    """What adapters see of a Linear."""

    in_features: int
    parts: tuple[Part, ...]
    delta: Delta | None = field(default=None)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama."""
    return make_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def loaded(base: Path) -> Any:
    """The same model in transformers."""
    return load_base(base)


@pytest.fixture
def linears(loaded: Any) -> dict[str, AdaptedLinear]:
    """The adaptable Linears of the tiny Llama, by their short names."""
    return {
        f"layers.{layer}.{short}": _fused(loaded, [f"model.layers.{layer}.{part}" for part in parts])
        for layer in range(loaded.config.num_hidden_layers)
        for short, parts in (FUSED | PLAIN).items()
    }


@pytest.fixture
def targets(linears: dict[str, AdaptedLinear]) -> TargetSpec:
    """What an adapter may stand on here."""
    return TargetSpec.of(Fingerprint("tiny"), linears, torch.float32)


class Shelf:
    """Folders by digest: what a manager resolves refs with."""

    def __init__(self) -> None:
        self._folders: dict[str, Path] = {}

    def put(self, folder: Path, name: str | None = None) -> AdapterRef:
        """A ref that leads to `folder`."""
        ref = AdapterRef(name or folder.name, 1, content_digest(folder))
        self._folders[ref.digest] = folder
        return ref

    def __call__(self, ref: AdapterRef) -> Path:
        return self._folders[ref.digest]


def make_manager(shelf: Shelf, linears: Mapping[str, AdaptedLinear], **settings: Any) -> LoraManager:
    """A manager with room for everything, unless `settings` say otherwise."""
    roomy = {"arena_bytes": 1 << 22, "max_slots": 8, "cache_bytes": 1 << 24}
    place = {"dtype": torch.float32, "device": torch.device("cpu")}
    return LoraManager(shelf, linears, **{**roomy, **place, **settings})


def fetch(manager: LoraManager, ref: AdapterRef) -> None:
    """Wait until `ref` has been read; raises what was wrong with it."""
    ended = threading.Event()
    manager.on_ready(ended.set)
    manager.prefetch(ref)
    while not manager.is_ready(ref):
        assert ended.wait(10)
        ended.clear()


def acquire(manager: LoraManager, ref: AdapterRef) -> int | None:
    """The slot of `ref` once its file has been read, loaded into memory."""
    fetch(manager, ref)
    slot = manager.acquire(ref)
    manager.apply(manager.take_loads())
    return slot


def _fused(model: Any, paths: list[str]) -> AdaptedLinear:
    parts, start = [], 0
    for path in paths:
        size = model.get_submodule(path).out_features
        parts.append(Part(path, start, size))
        start += size
    return AdaptedLinear(model.get_submodule(paths[0]).in_features, tuple(parts))
