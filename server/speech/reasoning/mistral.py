"""Magistral and its kin: `[THINK]...[/THINK]`."""

from __future__ import annotations

from ..thoughts import ThoughtFormat

EXPORT = ThoughtFormat(("[THINK]",), ("[/THINK]",))
