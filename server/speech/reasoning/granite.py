"""Granite 3.2: two sentences in plain words."""

from __future__ import annotations

from ..thoughts import ThoughtFormat

EXPORT = ThoughtFormat(
    ("Here is my thought process:", "Here's my thought process:"), ("Here is my response:", "Here's my response:")
)
