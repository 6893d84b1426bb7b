"""What an adapter may be called: `name` or `organisation/name`, as on a model hub."""

from __future__ import annotations

import re

from ..core.errors import Conflict, InvalidRequest
from .tables import NAME_LENGTH

PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_name(name: str, base: str) -> None:
    """Raises InvalidRequest for a name that cannot be used, Conflict for that of the base."""
    problem = _problem(name)
    if problem is not None:
        raise InvalidRequest(f"the name {name[: NAME_LENGTH + 1]!r} {problem}", param="name")
    if name == base:
        raise Conflict(f"{name!r} is the name of the base model", param="name", code="name_taken")


def _problem(name: str) -> str | None:
    if not name:
        return "is empty"
    if len(name) > NAME_LENGTH:
        return f"is longer than {NAME_LENGTH} characters"
    parts = name.split("/")
    if len(parts) > 2:
        return "has more than one '/'"
    if not all(PART.fullmatch(part) for part in parts):
        return "may hold letters, digits, '.', '_' and '-', and each part begins with a letter or digit"
    return None
