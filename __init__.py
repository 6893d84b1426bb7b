"""Aril: one quantised base model, very many LoRA adapters, one server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine.llm import LLM
    from .engine.params import SamplingParams
    from .lora.adapter import AdapterRef

# torch's threads sleep when they have nothing to do: spinning, they would take the cores from the kernels' own pool
# (kernels/csrc/pool.h). OpenMP asks once, when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
__all__ = ["LLM", "AdapterRef", "SamplingParams"]

_HOMES = {"LLM": "engine.llm", "SamplingParams": "engine.params", "AdapterRef": "lora.adapter"}


def __getattr__(name: str) -> object:
    """The public names, imported on first use so that `import aril` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'aril' has no attribute {name!r}; it has {', '.join(__all__)}")
    import gc
    from importlib import import_module

    collects = gc.isenabled()
    gc.disable()  # torch makes much that stays, and each collection would walk all of it: a fifth of its import
    try:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    finally:
        if collects:
            gc.enable()
