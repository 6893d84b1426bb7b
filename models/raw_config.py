"""A model's own words about itself, for networks that no family builds: config.json, or a GGUF's metadata, unchecked.

The same size goes by several names; the first that is there is believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import ArilError
from .facts import AttentionFacts, Positions, Quantisation
from .opened import QUANTIZATION_FILES
from .papers import read_object
from .source import Source
from .words import ranges

NAMES = {  # ours -> those of configs, then of GGUF metadata behind the architecture's name
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "block_count"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "embedding_length"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "feed_forward_length"),
    "vocab_size": ("vocab_size",),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention.head_count"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "attention.head_count_kv"),
    "head_dim": ("head_dim", "attention.key_length"),
    "window": ("sliding_window", "attention.sliding_window"),
    "longest": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "context_length"),
}


@dataclass(frozen=True, slots=True)
class RawConfig:
    """`fields` as they stand there; `metadata` of a GGUF file, empty for a folder."""

    fields: Mapping[str, Any]
    metadata: Mapping[str, Any]
    architecture: str | None
    model_type: str | None
    quantisation: Quantisation  # without groups: what the config states

    def size(self, ours: str) -> int | None:
        """One of NAMES."""
        found = (self.fields.get(name) for name in NAMES[ours])
        return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)

    def text(self, name: str) -> str | None:
        """A field that is a text."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else None

    def switch(self, name: str) -> bool | None:
        """A field that is true or false."""
        value = self.fields.get(name)
        return value if isinstance(value, bool) else None

    def attention(self) -> tuple[AttentionFacts, ...]:
        """All layers, as if they were alike; nothing where the fields say too little."""
        layers, heads, width = self.size("num_layers"), self.size("heads"), self.size("hidden_size")
        if not layers or not heads or not width:
            return ()
        head_dim = self.size("head_dim") or width // heads
        kv_heads = self.size("kv_heads") or heads
        return (AttentionFacts(ranges(range(layers)), heads, kv_heads, head_dim, self.size("window"), None),)

    def positions(self) -> Positions:
        """The scheme that the fields seem to speak of."""
        longest = self.size("longest")
        attention = self.fields.get("attn_config")  # MPT
        if self.fields.get("alibi") is True or (isinstance(attention, dict) and attention.get("alibi") is True):
            return Positions("ALiBi", usual=longest, longest=longest)
        rope = self.fields.get("rope_parameters") or self.fields.get("rope_scaling") or {}
        rope = rope if isinstance(rope, dict) else {}
        theta = _number(rope.get("rope_theta", self.fields.get("rope_theta", self.fields.get("rope.freq_base"))))
        if theta is None and not rope:
            return Positions("not stated", usual=longest, longest=longest)
        rule = rope.get("rope_type") or rope.get("type") or "default"
        original = rope.get("original_max_position_embeddings")
        return Positions(
            "RoPE",
            str(rule),
            theta,
            _number(rope.get("factor")),
            original if isinstance(original, int) else None,
            longest,
            longest,
        )


def raw_config_of(source: Source) -> RawConfig:
    """What can be read of it; empty where nothing can."""
    return _of_gguf(source) if source.kind == "gguf" else _of_folder(source)


def _of_folder(source: Source) -> RawConfig:
    config = read_object(source.path / "config.json")
    inner = config.get("text_config")  # of models that see
    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else None
    kind = config.get("model_type")
    return RawConfig(
        {**config, **inner} if isinstance(inner, dict) else config,
        {},
        None if named is None else str(named),
        kind if isinstance(kind, str) else None,
        _quantisation(source, config),
    )


def _of_gguf(source: Source) -> RawConfig:
    from .gguf_file import GgufFile

    try:
        metadata: Mapping[str, Any] = GgufFile(source.path).metadata
    except ArilError:
        metadata = {}
    name = metadata.get("general.architecture")
    name = name if isinstance(name, str) else None
    fields = {key.removeprefix(f"{name}."): value for key, value in metadata.items() if key.startswith(f"{name}.")}
    return RawConfig(fields, metadata, name, name, Quantisation("gguf"))


def _quantisation(source: Source, config: Mapping[str, Any]) -> Quantisation:
    """The method as the checkpoint spells it (none = plain weights), with the simple ones of its settings."""
    stated = config.get("quantization_config") or config.get("compression_config")
    unnamed = "compressed-tensors" if "compression_config" in config else "an unnamed method"
    if not isinstance(stated, dict):
        found = [(name, method) for name, method in QUANTIZATION_FILES.items() if (source.path / name).is_file()]
        if not found:
            return Quantisation("none")
        stated, unnamed = read_object(source.path / found[0][0]), found[0][1]
    settings = {key: value for key, value in stated.items() if isinstance(value, str | int | float)}
    return Quantisation(str(settings.pop("quant_method", unnamed)), settings)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
