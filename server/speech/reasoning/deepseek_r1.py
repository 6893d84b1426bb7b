"""DeepSeek R1 and its kin: all is thought up to `</think>`, with or without `<think>` before it."""

from __future__ import annotations

from ..thoughts import ThoughtFormat

EXPORT = ThoughtFormat(("<think>",), ("</think>",), always=True)
