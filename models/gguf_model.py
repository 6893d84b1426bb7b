"""A GGUF file as a model: its metadata as a transformers config, its tensors under the names of the families.

The config is of transformers' plain class: a model's own one imports half of torch.distributed, two seconds at each
start, for defaults that a GGUF file does not need.

Weights are unpacked to float32 as they are read. llama.cpp stores the rows of q and k of its `llama` architecture in
the order of interleaved rotary pairs; they are put back into halves here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from gguf import GGMLQuantizationType
from torch import Tensor
from transformers import PreTrainedConfig

from ..core.errors import Unsupported
from .gguf_file import GgufFile

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
STORED = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


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
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}

    def dtype(self, name: str) -> torch.dtype:
        return STORED.get(self._tensors[name].kind, torch.bfloat16)

    def read(self, name: str) -> Tensor:
        values = torch.from_numpy(self._tensors[name].unpack())
        heads = self._heads.get(name.split(".")[-2]) if self._permuted else None
        return values if heads is None else _in_halves(values, heads)


def architecture_of(file: GgufFile) -> str:
    """The transformers class of the file's network; raises Unsupported with the architectures that can be read."""
    return _kind(file)[1]


def config_of(file: GgufFile) -> Any:
    """The transformers config that the metadata describes."""
    meta, name = file.metadata, file.metadata["general.architecture"]
    fields = {field: meta[f"{name}.{key}"] for field, key in FIELDS.items() if f"{name}.{key}" in meta}
    missing = sorted(FIELDS[field] for field in FIELDS.keys() - fields.keys() - {"num_key_value_heads"})
    if missing:
        raise Unsupported(f"{file.path} lacks the metadata {', '.join(missing)} of {name}", param="model")
    if any(isinstance(value, list) for value in fields.values()):
        raise Unsupported(f"{file.path}: layers of different sizes", param="model")
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
    config = PreTrainedConfig(**fields)
    config.model_type = _kind(file)[0]
    return config


def _kind(file: GgufFile) -> tuple[str, str]:
    name = file.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise Unsupported(
            f"{file.path} holds a {name!r} network; GGUF files of {', '.join(ARCHITECTURES)} can be read", param="model"
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
        factors = file.tensors[ROPE_FACTORS].unpack().tolist()
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
