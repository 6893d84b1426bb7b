"""Ids of files and batches: nobody guesses one, and they sort in the order of their making."""

from __future__ import annotations

import re
import secrets
import time

from ...core.errors import InvalidRequest

FORM = re.compile(r"[0-9a-f]{32}")


def new_id(prefix: str) -> str:
    """`prefix`, the microseconds since 1970 and 64 random bits."""
    return f"{prefix}{time.time_ns() // 1000:016x}{secrets.token_hex(8)}"


def cursor(text: str | None, prefix: str) -> str | None:
    """An id that a page ended with; raises InvalidRequest for what never was one."""
    if text is not None and not (text.startswith(prefix) and FORM.fullmatch(text.removeprefix(prefix))):
        raise InvalidRequest(f"after: takes the id that a page ended with, {prefix}...", param="after")
    return text
