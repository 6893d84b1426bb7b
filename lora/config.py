"""What adapter_config.json says: the fields that make the numbers, and PEFT's rules of which module they speak about.

Every field of PEFT's LoraConfig is read, known to be of no effect on inference, or refused by name; nothing is ignored
in silence. It has never seen a tensor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from . import patterns
from .fields import Fields, refusals
from .header import once
from .strangers import FIRST_BYTES, no_lora, what_is

T = TypeVar("T")
CONFIG_FILE = "adapter_config.json"
BASE_FIELD = "base_model_name_or_path"  # of it: what the adapter was trained on
WEIGHTS_FILE = "adapter_model.safetensors"
ALL_LINEAR = "all-linear"
# PEFT's defaults for absent fields
DEFAULT_RANK = 8
DEFAULT_ALPHA = 8.0
MAX_DEPTH = 32
MAX_BYTES = 1 << 20  # of the file; the largest that PEFT writes have a line for each module


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """A plain LoRA, as PEFT describes it. Module paths are those of the model it was trained on."""

    rank_default: int
    alpha_default: float
    use_rslora: bool
    targets: str | tuple[str, ...] | None  # regular expression, "all-linear", names; None = what the file holds
    exclude: str | tuple[str, ...]
    layers: tuple[int, ...]  # empty = all
    layers_pattern: tuple[str, ...]
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    base: str | None  # what the adapter says it was trained on
    document: Mapping[str, object]  # the file itself

    @classmethod
    def from_json(cls, raw: bytes, problems: list[str]) -> AdapterConfig | None:
        """Read the file's bytes; whatever cannot be served goes to `problems`.

        None where it describes no LoRA at all, so that there is nothing further to check.
        """
        document = _document(raw, problems)
        if document is None:
            return None
        problems += refusals(document)
        fields = Fields(document, problems)
        config = cls(
            rank_default=fields.rank("r", DEFAULT_RANK),
            alpha_default=fields.number("lora_alpha", DEFAULT_ALPHA),
            use_rslora=fields.boolean("use_rslora"),
            targets=fields.names_or_regex("target_modules"),
            exclude=fields.names_or_regex("exclude_modules") or (),
            layers=fields.integers("layers_to_transform"),
            layers_pattern=fields.regexes("layers_pattern"),
            rank_pattern=fields.pattern("rank_pattern", Fields.rank, DEFAULT_RANK),
            alpha_pattern=fields.pattern("alpha_pattern", Fields.number, DEFAULT_ALPHA),
            base=fields.text(BASE_FIELD),
            document=document,
        )
        if isinstance(config.targets, str) and (config.layers or config.layers_pattern):
            problems.append("layers_to_transform and layers_pattern need target_modules to be a list of names")
        return config

    def adapts(self, path: str) -> bool:
        """Whether the module at `path` is one that this adapter was trained on."""
        if self._excludes(path):
            return False
        if self.targets is None:
            return True
        if isinstance(self.targets, str):
            return self.targets.lower() == ALL_LINEAR or patterns.is_whole(self.targets, path)
        return path in self.targets or (_ends_with(path, self.targets) and self._has_layer(path))

    def rank(self, path: str) -> int:
        """The rank at `path`."""
        return _first_match(self.rank_pattern, path, self.rank_default)

    def scale(self, path: str) -> float:
        """What the product B A is multiplied by: alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA."""
        alpha, rank = _first_match(self.alpha_pattern, path, self.alpha_default), self.rank(path)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def canonical(self) -> bytes:
        """The fields that make the numbers, in one spelling: the first half of what a digest is taken of."""
        said = {
            "r": self.rank_default,
            "lora_alpha": self.alpha_default,
            "use_rslora": self.use_rslora,
            "target_modules": _sorted(self.targets),
            "exclude_modules": _sorted(self.exclude),
            "layers_to_transform": sorted(self.layers),
            "layers_pattern": list(self.layers_pattern),
            "rank_pattern": list(self.rank_pattern.items()),  # the first match wins: the order counts
            "alpha_pattern": list(self.alpha_pattern.items()),
        }
        return json.dumps(said, sort_keys=True, separators=(",", ":")).encode()

    def _excludes(self, path: str) -> bool:
        if isinstance(self.exclude, str):
            return patterns.is_whole(self.exclude, path)
        return path in self.exclude or _ends_with(path, self.exclude)

    def _has_layer(self, path: str) -> bool:
        return not self.layers or patterns.layer_of(self.layers_pattern, path) in self.layers


def _document(raw: bytes, problems: list[str]) -> dict[str, object] | None:
    if len(raw) > MAX_BYTES:
        problems.append(f"adapter_config.json has {len(raw)} bytes, and at most {MAX_BYTES} are read")
        return None
    stranger = what_is(raw[:FIRST_BYTES], CONFIG_FILE)
    if stranger is not None:
        problems.append(stranger)
        return None
    try:
        document = json.loads(raw, object_pairs_hook=once)
        _require_plain(document)
    except (ValueError, RecursionError) as error:
        problems.append(f"adapter_config.json is not JSON: {error}")
        return None
    if not isinstance(document, dict):
        problems.append("adapter_config.json is not a JSON object")
        return None
    reason = no_lora(document)
    if reason is not None:
        problems.append(reason)
        return None
    return document


def _require_plain(document: object) -> None:
    """Raises ValueError for what Python reads and others (clients, databases) cannot: NaN, half characters, NUL."""
    _require_shallow(document, MAX_DEPTH)
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    text.encode()
    if "\\u0000" in text:
        raise ValueError("it holds the character U+0000")


def _require_shallow(value: object, room: int) -> None:
    if room == 0:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_shallow(inner, room - 1)


def _first_match(pattern: Mapping[str, T], path: str, default: T) -> T:
    return next((value for key, value in pattern.items() if patterns.is_last(key, path)), default)


def _ends_with(path: str, names: tuple[str, ...]) -> bool:
    return any(path.endswith(f".{name}") for name in names)


def _sorted(names: str | tuple[str, ...] | None) -> str | list[str] | None:
    return sorted(names) if isinstance(names, tuple) else names
