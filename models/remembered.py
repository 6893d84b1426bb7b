"""What transformers said once, kept in Aril's cache: importing it takes longer than all else of a start but torch.

A document lies in $ARIL_CACHE/read/<kind>-<key>.json, where the key covers all that it was made of. It appears whole or
not at all; one that cannot be read is made anew, and one that cannot be kept costs the next start its second.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..core.log import event, get_logger
from .source import default_cache

VERSION = 1  # of the documents; another one makes all of them anew
MOST = 64  # documents that are kept; a tokenizer's has some megabytes
SEALS = "seal"  # the document's last field: a file that was cut short has none

log = get_logger(__name__)


def remembered(kind: str, made_of: Iterable[str | bytes], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The JSON object that `make` gives for `made_of`, made now or earlier."""
    path = _place(kind, made_of)
    found = _read(path)
    if found is None:
        found = make()
        _keep(path, found)
    return found


def is_remembered(kind: str, made_of: Iterable[str | bytes]) -> bool:
    """Whether `remembered` would answer at once."""
    return _read(_place(kind, made_of)) is not None


def state_of(files: Iterable[Path]) -> list[str]:
    """What tells that files are no longer what they were: their places, sizes and times."""
    seen = ((file, file.stat()) for file in sorted(files))
    return [f"{file.resolve()}|{each.st_size}|{each.st_mtime_ns}" for file, each in seen]


def _place(kind: str, made_of: Iterable[str | bytes]) -> Path:
    return default_cache() / "read" / f"{kind}-{_key(made_of)}.json"


def _key(made_of: Iterable[str | bytes]) -> str:
    told = hashlib.sha256(f"{VERSION}|{version('transformers')}".encode())
    for each in made_of:
        told.update(b"|" + (each if isinstance(each, bytes) else each.encode()))
    return told.hexdigest()[:24]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.pop(SEALS, None) != path.stem:
        return None
    return found


def _keep(path: Path, document: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
            try:
                json.dump({**document, SEALS: path.stem}, file)
                file.close()
                os.replace(file.name, path)
            finally:
                Path(file.name).unlink(missing_ok=True)
        _forget_oldest(path.parent)
    except OSError as error:
        log.info(event("not_remembered", path=path, reason=error))


def _forget_oldest(folder: Path) -> None:
    kept = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    for file in kept[:-MOST]:
        file.unlink(missing_ok=True)
