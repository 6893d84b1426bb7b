"""A GGUF file as a model: its metadata as a config, its tensors under the names of the families.

Packed weights stay packed (quant/formats/gguf.py says what they mean). llama.cpp stores the rows of q and k of its
`llama` architecture in the order of interleaved rotary pairs; they are put back into halves here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.errors import Unsupported
from ..quant.base import Stored
from .config import Config
from .gguf_file import STORED, GgufFile, GgufTensor

ARCHITECTURES = {  # general.architecture -> transformers model_type and class
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
}
MISTRAL = ("mistral", "MistralForCausalLM")  # a llama file with a sliding window
FIELDS = {  # config field -> metadata key behind the architecture's name
    "max_position_embeddings": "context_length",
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"  # llama 3.1 scaling, already worked out: one divisor for each frequency


class GgufCheckpoint:
    """The tensors of a GGUF file under Hugging Face names; a name that means nothing to us stays as it is."""

    def __init__(self, file: GgufFile) -> None:
        self._permuted = file.metadata["general.architecture"] == "llama"
        self._tensors = {_renamed(name): tensor for name, tensor in file.tensors.items() if name != ROPE_FACTORS}
        self._heads = {
            "q_proj": file.metadata.get("llama.attention.head_count"),
            "k_proj": file.metadata.get(
                "llama.attention.head_count_kv", file.metadata.get("llama.attention.head_count")
            ),
        }
        self.stored = {name: _header(tensor) for name, tensor in self._tensors.items()}
        self._path = file.path

    def file_of(self, name: str) -> Path:
        """The one file."""
        return self._path

    def read(self, name: str) -> Tensor:
        """Numbers where they are stored as such; else the packed bytes of each row: uint8 [N, bytes]."""
        values = self._tensors[name].values()
        heads = self._heads.get(name.split(".")[-2]) if self._permuted else None
        return values if heads is None else _in_halves(values, heads)


def architecture_of(file: GgufFile) -> str:
    """The transformers class of the file's network; raises Unsupported with the architectures that can be read."""
    return _kind(file)[1]


def config_of(file: GgufFile) -> Config:
    """The config that the metadata describes."""
    meta, name = file.metadata, file.metadata["general.architecture"]
    fields = {field: meta[f"{name}.{key}"] for field, key in FIELDS.items() if f"{name}.{key}" in meta}
    _check(file, name, fields)
    fields |= {
        "num_key_value_heads": fields.get("num_key_value_heads", fields["num_attention_heads"]),
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "head_dim": _head_dim(meta, name, fields),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _eos(meta),
        "rope_parameters": _rope(file, name),
        "sliding_window": meta.get(f"{name}.attention.sliding_window"),
        "layer_types": ["full_attention"] * fields["num_hidden_layers"],  # what llama.cpp computes for Qwen
        "hidden_act": "silu",
    }
    return Config({"model_type": _kind(file)[0], **fields})


def _check(file: GgufFile, name: str, fields: Mapping[str, Any]) -> None:
    missing = sorted(FIELDS[field] for field in FIELDS.keys() - fields.keys() - {"num_key_value_heads"})
    if missing:
        raise Unsupported(f"{file.path} lacks the metadata {', '.join(missing)} of {name}", param="model")
    for field, value in fields.items():
        key = f"{name}.{FIELDS[field]}"
        if isinstance(value, list):
            raise Unsupported(f"{file.path}: {key} differs between layers", param="model")
        if type(value) is not (float if field == "rms_norm_eps" else int) or not value > 0:
            raise Unsupported(f"{file.path}: {key} is {value!r}", param="model")
    last = f"blk.{fields['num_hidden_layers'] - 1}.attn_norm.weight"
    for tensor in ("token_embd.weight", last):
        if tensor not in file.tensors:
            raise Unsupported(f"{file.path} holds no tensor {tensor}", param="model")


def _header(tensor: GgufTensor) -> Stored:
    return Stored(tensor.shape, STORED.get(tensor.kind, tensor.kind.name))


def _kind(file: GgufFile) -> tuple[str, str]:
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise Unsupported(
            f"{file.path}: general.architecture is {name!r}; GGUF files of {', '.join(ARCHITECTURES)} can be read",
            param="model",
        )
    return MISTRAL if name == "llama" and "llama.attention.sliding_window" in file.metadata else ARCHITECTURES[name]


def _head_dim(meta: Mapping[str, Any], name: str, fields: Mapping[str, Any]) -> int:
    heads_fill_the_width = fields["hidden_size"] // fields["num_attention_heads"]
    size = int(meta.get(f"{name}.attention.key_length", heads_fill_the_width))
    rotated = meta.get(f"{name}.rope.dimension_count", size)
    if rotated != size:
        raise Unsupported(f"rope.dimension_count {rotated} of head size {size}: heads rotated in part", param="model")
    return size


def _eos(meta: Mapping[str, Any]) -> int | list[int] | None:
    """End of text and, where the file names another, end of turn."""
    ids = [meta.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
    found = [token for token in dict.fromkeys(ids) if token is not None]
    return found[0] if len(found) == 1 else found or None


def _rope(file: GgufFile, name: str) -> dict[str, Any]:
    meta, scaling = file.metadata, f"{name}.rope.scaling"
    theta = {"rope_theta": float(meta.get(f"{name}.rope.freq_base", 10_000.0))}
    if ROPE_FACTORS in file.tensors:  # a frequency divided by its own factor is what longrope does too
        factors = file.tensors[ROPE_FACTORS].values().tolist()
        rule = {"rope_type": "longrope", "long_factor": factors, "short_factor": factors, "attention_factor": 1.0}
        return {**rule, **theta, "original_max_position_embeddings": meta[f"{name}.context_length"]}
    kind = meta.get(f"{scaling}.type", "none")
    if kind == "none":
        return {"rope_type": "default", **theta}
    if kind not in ("linear", "yarn"):
        raise Unsupported(
            f"{file.path}: RoPE scaling {kind!r}; GGUF files with linear or yarn can be read", param="model"
        )
    stretch = {"rope_type": kind, "factor": meta.get(f"{scaling}.factor"), **theta}
    if f"{scaling}.original_context_length" in meta and kind == "yarn":
        stretch["original_max_position_embeddings"] = meta[f"{scaling}.original_context_length"]
    return stretch


def _renamed(name: str) -> str:
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if block and block[2] in INNER:
        return f"model.layers.{block[1]}.{INNER[block[2]]}.{block[3]}"
    outer, _, kind = name.rpartition(".")
    return f"{OUTER[outer]}.{kind}" if outer in OUTER else name


def _in_halves(rows: Tensor, heads: int) -> Tensor:
    """Rows of q or k, each head's rotary pairs next to each other -> first halves, then second halves."""
    paired = rows.view(heads, -1, 2, *rows.shape[1:])  # [heads, D / 2, 2, ...]
    return paired.transpose(1, 2).reshape(rows.shape)
