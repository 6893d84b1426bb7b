"""Sampling defaults of a model: what its generation_config.json says, in the words of SamplingParams."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InvalidRequest
from .params import SamplingParams

AUTO, NEUTRAL = "auto", "vllm"
FIELDS = {  # name in generation_config.json -> ours
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def sampling_defaults(asked: str, own: Mapping[str, Any]) -> dict[str, object]:
    """Fields that a request need not set. `asked`: auto (the model's `own` file), vllm (none), or a folder.

    Raises InvalidRequest when the folder has no such file, or a value is out of range.
    """
    if asked == NEUTRAL:
        return {}
    found = own if asked == AUTO else _read(Path(asked))
    defaults = {ours: found[theirs] for theirs, ours in FIELDS.items() if found.get(theirs) is not None}
    try:
        SamplingParams(**defaults)
    except (InvalidRequest, TypeError) as error:
        raise InvalidRequest(
            f"generation_config.json: {error} (--generation-config {NEUTRAL} ignores the file)",
            param="generation_config",
        ) from error
    return defaults


def _read(folder: Path) -> Mapping[str, Any]:
    file = folder / "generation_config.json"
    if not file.is_file():
        raise InvalidRequest(
            f"--generation-config {folder}: there is no {file}; it takes {AUTO}, {NEUTRAL} or a folder with that file",
            param="generation_config",
        )
    found = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise InvalidRequest(f"{file} does not hold a JSON object", param="generation_config")
    return found
