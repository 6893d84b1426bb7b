"""Qwen3 and its kin: thoughts stand between `<think>`, which the chat template may have written, and `</think>`."""

from __future__ import annotations

from ..thoughts import ThoughtFormat

EXPORT = ThoughtFormat(("<think>",), ("</think>",))
