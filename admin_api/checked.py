"""What is known of uploaded files once they are found good: all that a row of the registry says about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..lora.validate import CONFIG_FILE, AdapterSummary, TargetSpec, validate


@dataclass(frozen=True, slots=True)
class Facts:
    """A valid adapter: its summary, adapter_config.json as uploaded, and its bytes on disk."""

    summary: AdapterSummary
    config: Mapping[str, Any]
    size: int


def facts_of(folder: Path, targets: TargetSpec) -> Facts:
    """Check the files of `folder`; raises InvalidAdapter with everything that is wrong."""
    summary = validate(folder, targets)
    config = json.loads((folder / CONFIG_FILE).read_bytes())
    return Facts(summary, config, sum(file.stat().st_size for file in folder.iterdir()))
