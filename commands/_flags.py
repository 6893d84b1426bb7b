"""Flags that several commands share. The engine's are made from the fields of EngineConfig, named nowhere else."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
from collections.abc import Collection
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from ..core.errors import InvalidRequest
from ..engine.config import EngineConfig, parse_bytes, parse_list, parse_switch
from ..server.config import ServerConfig

DEFAULT_URL = "http://127.0.0.1:8000"


def add_engine_flags(parser: argparse.ArgumentParser, only: Collection[str] | None = None) -> None:
    """`MODEL`, and a flag for each choice about the engine, or for those fields named in `only`."""
    group = parser.add_argument_group("engine")
    for each in fields(EngineConfig):
        if only is not None and each.name not in only:
            continue
        if each.metadata["flag"] == each.name:
            parser.add_argument(each.name, metavar=each.name.upper(), help=each.metadata["help"])
        else:
            group.add_argument(each.metadata["flag"], dest=each.name, **_shape(each))


def engine_config(args: argparse.Namespace, **fixed: object) -> EngineConfig:
    """The config of parsed flags; `fixed` fields win. Raises InvalidRequest naming the flag."""
    given = {**_given(args, EngineConfig), **{name: value for name, value in fixed.items() if value is not None}}
    return EngineConfig(**given)


def add_server_flags(parser: argparse.ArgumentParser, only: Collection[str] | None = None) -> None:
    """A flag for each choice about the server, or for those fields named in `only`."""
    group = parser.add_argument_group("manners of the server", "what they do: docs/serving.md")
    for each in fields(ServerConfig):
        if only is not None and each.name not in only:
            continue
        group.add_argument(each.metadata["flag"], dest=each.name, **_shape(each))


def server_config(args: argparse.Namespace) -> ServerConfig:
    """The config of parsed flags. Raises InvalidRequest naming the flag."""
    return ServerConfig(**_given(args, ServerConfig))


def _given(args: argparse.Namespace, kind: type[EngineConfig | ServerConfig]) -> dict[str, Any]:
    """The flags of `kind` that were given."""
    found = ((each.name, getattr(args, each.name, None)) for each in fields(kind))
    return {name: value for name, value in found if value is not None}


def add_url_flags(parser: argparse._ActionsContainer) -> None:
    """Where a running server is."""
    parser.add_argument("--url", default=os.environ.get("ARIL_URL", DEFAULT_URL), help=f"the server ({DEFAULT_URL})")


def add_api_key(parser: argparse.ArgumentParser) -> None:
    """The key of /v1."""
    parser.add_argument(
        "--api-key", default=os.environ.get("ARIL_API_KEY") or None, help="key of /v1 (or ARIL_API_KEY)"
    )


def key_given(flag: str, text: str | None) -> str | None:
    """The key that a flag or its variable gives, if any.

    Raises InvalidRequest for an empty one: whoever forgot to set a variable means neither another key nor none.
    """
    if text is None or text.strip():
        return text and text.strip()
    variable = flag.replace("--", "ARIL_").replace("-", "_").upper()
    raise InvalidRequest(f"{flag} is empty; give a key, or neither it nor {variable}", param=flag)


def add_state_dir(parser: argparse._ActionsContainer) -> None:
    """Where the registry of a model lives."""
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=os.environ.get("ARIL_STATE_DIR"),
        help="folder of the registry: database, adapter files, admin key (or ARIL_STATE_DIR; "
        "by default ~/.local/state/aril/MODEL)",
    )


def state_dir(given: Path | None, model: str) -> Path:
    """The state folder in force; each base has one of its own, since an adapter belongs to its base."""
    if given is not None:
        return Path(given)
    if not os.path.exists(model):
        return state_home() / re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.")
    place = os.path.realpath(model)  # however it was spelt
    return state_home() / f"{Path(place).name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def state_home() -> Path:
    """Where state folders are that nobody placed elsewhere."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "aril"


def _readable(num_bytes: Any) -> str:
    """A default size as a person would type it."""
    return f"{num_bytes >> 30}GiB" if num_bytes % (1 << 30) == 0 else f"{num_bytes >> 20}MiB"


def _shape(each: Field[Any]) -> dict[str, Any]:
    """How argparse shows a field. Its text is read by the config, so that errors sound alike everywhere."""
    facts, default = each.metadata, each.default
    if facts["parse"] is parse_switch:
        return {"help": facts["help"], "action": argparse.BooleanOptionalAction, "default": None}
    if facts["parse"] is parse_list:
        return {"help": facts["help"], "action": "append", "metavar": each.name.rsplit("_", 1)[-1].upper()}
    shown = "" if default is None else f" ({_readable(default) if facts['parse'] is parse_bytes else default})"
    metavar = "|".join(map(str, facts["choices"])) if facts["choices"] and len(facts["choices"]) < 5 else None
    return {"help": facts["help"] + shown, "metavar": metavar or each.name.rsplit("_", 1)[-1].upper()}
