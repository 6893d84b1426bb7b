"""Aril: one quantised base model, very many LoRA adapters, one server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine.llm import LLM
    from .engine.params import SamplingParams
    from .lora.adapter import AdapterRef

__version__ = "0.1.0"
__all__ = ["LLM", "AdapterRef", "SamplingParams"]

_HOMES = {"LLM": "engine.llm", "SamplingParams": "engine.params", "AdapterRef": "lora.adapter"}


def __getattr__(name: str) -> object:
    """The public names, imported on first use so that `import aril` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'aril' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
