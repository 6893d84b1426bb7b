"""Llama 4, under vLLM's name for it: as pythonic."""

from __future__ import annotations

from .pythonic import EXPORT

__all__ = ["EXPORT"]
