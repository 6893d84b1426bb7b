"""Which model this is: the names that its own files give it, and a digest of what its config says of the network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.cards import front_matter

# What differs between copies of one model, or says how it is stored; and fields that begin with _.
VOLATILE = {
    "transformers_version", "torch_dtype", "dtype", "quantization_config", "compression_config", "use_cache",
    "unsloth_fixed", "unsloth_version",
}  # fmt: skip
GGUF_NAMES = ("general.name", "general.source.huggingface.repository", "general.source.url", "general.repo_url")
GGUF_PARTS = ("general.basename", "general.size_label", "general.finetune", "general.version")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a checkpoint says of itself."""

    names: tuple[str, ...] = ()
    config: str = ""  # hex SHA-256


def of_folder(folder: Path, config: Mapping[str, Any]) -> Identity:
    """That of a folder with this config.json. A card's base_model is the same model where it was only quantised."""
    card = front_matter(folder / "README.md")
    is_copy = card.get("base_model_relation", ["quantized" if "quantization_config" in config else ""]) == ["quantized"]
    copied = card.get("base_model", []) if is_copy else []
    named = config.get("_name_or_path")
    return Identity((*([named] if isinstance(named, str) and named else []), *copied), digest_of(config))


def of_gguf(path: Path, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Identity:
    """That of a GGUF file whose metadata amount to `config`."""
    names = [metadata[key] for key in GGUF_NAMES if isinstance(metadata.get(key), str)]
    parts = [metadata[key] for key in GGUF_PARTS if isinstance(metadata.get(key), str)]
    return Identity((path.stem, *names, *(["-".join(parts)] if len(parts) > 1 else [])), digest_of(config))


def digest_of(config: Mapping[str, Any]) -> str:
    """SHA-256 of the lasting fields as canonical JSON."""
    lasting = {key: value for key, value in config.items() if key not in VOLATILE and not key.startswith("_")}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()
