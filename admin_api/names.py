"""What an adapter may be called: `name` or `organisation/name`, as on a model hub."""

from __future__ import annotations

import re

from ..core.errors import Conflict, InvalidRequest
from .tables import NAME_LENGTH

ALIAS = re.compile(r"[a-z][a-z0-9._-]{0,62}")
MAX_QUERY = 2 * NAME_LENGTH
# They would be read as what is asked of an organisation.
RESERVED = ("activate", "aliases", "deactivate", "recheck", "revisions")
PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_name(name: str, base: str) -> None:
    """Raises InvalidRequest for a name that cannot be used, Conflict for that of the base."""
    check_spelling(name)
    if name == base:
        raise Conflict(f"{name!r} is the name of the base model", param="name", code="name_taken")


def check_spelling(name: str, *, param: str = "name") -> None:
    """Raises InvalidRequest for what no adapter can be called."""
    problem = _problem(name)
    if problem is not None:
        raise InvalidRequest(f"the name {name[: NAME_LENGTH + 1]!r} {problem}", param=param)


def check_alias(name: str) -> None:
    """Raises InvalidRequest for an alias that cannot be used."""
    if not ALIAS.fullmatch(name):
        rule = "begins with a small letter, then has up to 62 small letters, digits, '.', '_' and '-'"
        raise InvalidRequest(f"the alias {name[:64]!r} cannot be used: one {rule}", param="alias")


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
    if len(parts) == 2 and parts[1] in RESERVED:
        return f"ends with {parts[1]!r}, a word of this API"
    return None
