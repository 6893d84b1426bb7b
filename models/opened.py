"""A model on disk, opened but not read: which network it is, its config, how it is quantised, where its tensors are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import NotFound, Unsupported
from .base import Family, families
from .checkpoint import Checkpoint, open_checkpoint
from .config import read_config
from .identity import Identity, of_folder, of_gguf
from .source import Source

# What older tools wrote beside config.json instead of into it, and who wrote it.
QUANTIZATION_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


@dataclass(frozen=True, slots=True)
class Opened:
    """Enough to refuse a model by name before a weight is read."""

    architecture: str
    family: Family
    config: Any  # config.Config, or with --trust-remote-code the transformers config
    quantization: Mapping[str, Any] | None
    checkpoint: Callable[[], Checkpoint]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    identity: Identity = field(default_factory=Identity)

    def eos_token_ids(self) -> tuple[int, ...]:
        """What ends a text, as generation_config.json says, else the config."""
        found = self.generation_config.get("eos_token_id", getattr(self.config, "eos_token_id", None))
        if found is None:
            return ()
        return (found,) if isinstance(found, int) else tuple(found)


def open_model(source: Source, *, trust_remote_code: bool = False) -> Opened:
    """Open `source`; raises Unsupported for an architecture that is not served, NotFound for a missing file."""
    return _open_gguf(source.path) if source.kind == "gguf" else _open_folder(source.path, trust_remote_code)


def family_of(architecture: str) -> Family:
    """Who builds `architecture`; raises Unsupported with the list of those that are served."""
    known = {name: family for family in map(families.__getitem__, families.names()) for name in family.architectures}
    if architecture not in known:
        raise Unsupported(
            f"architecture {architecture} is not supported; Aril serves {', '.join(sorted(known))}", param="model"
        )
    return known[architecture]


def _open_gguf(path: Path) -> Opened:
    from .gguf_file import GgufFile  # these two alone need the gguf package
    from .gguf_model import GgufCheckpoint, architecture_of, config_of

    file = GgufFile(path)
    architecture = architecture_of(file)
    family = family_of(architecture)
    config = config_of(file)
    return Opened(
        architecture,
        family,
        config,
        {"quant_method": "gguf"},
        lambda: GgufCheckpoint(file),
        identity=of_gguf(path, file.metadata, config.to_dict()),
    )


def _open_folder(folder: Path, trust_remote_code: bool) -> Opened:
    raw = _json(folder / "config.json")
    if raw is None:
        raise NotFound(f"{folder} holds no config.json (and no single .gguf file)", param="model")
    architecture = _architecture(raw, folder)
    family, quantization = family_of(architecture), _quantization(raw, folder)
    return Opened(
        architecture,
        family,
        read_config(folder, trust_remote_code=trust_remote_code),
        quantization,
        lambda: open_checkpoint(folder),
        _json(folder / "generation_config.json") or {},
        of_folder(folder, raw),
    )


def _architecture(raw: Mapping[str, Any], folder: Path) -> str:
    """The first of `architectures`, else what transformers takes for the model_type."""
    named = raw.get("architectures")
    if isinstance(named, list) and named:
        return str(named[0])
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(raw.get("model_type", "")))
    if name is None:
        raise Unsupported(f"{folder / 'config.json'} names neither architectures nor a known model_type", param="model")
    return str(name)


def _quantization(raw: Mapping[str, Any], folder: Path) -> Mapping[str, Any] | None:
    """What config.json says, with what stands beside it under the names of those files: a format compares them."""
    beside = {name: found for name in QUANTIZATION_FILES if (found := _json(folder / name)) is not None}
    found, other = raw.get("quantization_config"), raw.get("compression_config")
    if found and other:
        raise Unsupported(
            f"{folder / 'config.json'} holds quantization_config and compression_config: there can be only one",
            param="model",
        )
    found = found or other
    if found:
        if not isinstance(found, dict):
            raise Unsupported(f"{folder / 'config.json'}: quantization_config must be an object", param="model")
        named = {"quant_method": "compressed-tensors", **found} if "compression_config" in raw else found
        return {**named, **_agreeing(named, beside, folder)}
    for name, content in beside.items():
        return {"quant_method": QUANTIZATION_FILES[name], **content}
    return None


def _agreeing(
    found: Mapping[str, Any], beside: Mapping[str, Mapping[str, Any]], folder: Path
) -> Mapping[str, Mapping[str, Any]]:
    """`beside`; raises Unsupported where a file claims another format than config.json does."""
    for name, content in beside.items():
        claimed = content.get("quant_method")
        if claimed is not None and claimed != found.get("quant_method"):
            raise Unsupported(
                f"{folder / 'config.json'} says quant_method {found.get('quant_method')!r}, {name} says {claimed!r}: "
                f"they must agree",
                param="model",
            )
    return beside


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"{path} is not JSON: {error}", param="model") from error
    if not isinstance(found, dict):
        raise Unsupported(f"{path} holds a {type(found).__name__}, not an object", param="model")
    return found
