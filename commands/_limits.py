"""The flags of limits, of tenants and of keys: a number, or `none` to lift one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..core.errors import InvalidRequest
from ..engine.config import parse_bytes
from ._tables import size

RATES = ("requests_per_minute", "tokens_per_minute", "concurrent_requests")
AMOUNTS = ("max_adapters", "max_adapter_bytes")
NONE = "none"


def add_limit_flags(parser: argparse.ArgumentParser, limits: Sequence[str]) -> None:
    """One flag for each limit."""
    group = parser.add_argument_group("limits", "each a number, or none; what is left out stays as it is")
    for name in limits:
        group.add_argument(_flag(name), dest=name, metavar="SIZE" if name.endswith("bytes") else "N")


def limits_in(args: argparse.Namespace, limits: Sequence[str]) -> dict[str, int | None]:
    """Those that are given; raises InvalidRequest for what is no number."""
    return {name: _number(name, getattr(args, name)) for name in limits if getattr(args, name) is not None}


def shown(view: dict[str, Any], limits: Sequence[str]) -> str:
    """Limits in words."""
    given = [(name, view[name]) for name in limits if view[name] is not None]
    return ", ".join(f"{name.replace('_', ' ')} {_amount(name, value)}" for name, value in given) or "no limits"


def _amount(name: str, value: int) -> str:
    return size(value) if name.endswith("bytes") else f"{value:,}"


def _number(name: str, text: str) -> int | None:
    if text.lower() == NONE:
        return None
    if name.endswith("bytes"):
        return _bytes(name, text)
    if not text.isascii() or not text.isdigit():
        raise InvalidRequest(f"{_flag(name)} {text}: it takes a whole number, or none", param=name)
    return int(text)


def _bytes(name: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise InvalidRequest(f"{_flag(name)}: {error}, or none", param=name) from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
