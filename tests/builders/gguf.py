"""GGUF files written on the spot with llama.cpp's own library, from tiny models in Hugging Face form."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .blocks import random_blocks

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_gguf(
    path: Path, folder: Path, kind: str = "Q8_0", kinds: Mapping[str, str] | None = None, **metadata: Any
) -> Path:
    """Write the model in `folder` to `path`, matrices as `kind`; `metadata` adds keys behind the architecture's name.

    `kinds` are exceptions, by the last part of a module's name (v_proj). A type that llama.cpp's Python library cannot
    write gets random blocks. A double underscore in a key stands for a dot: rope__scaling__type="linear".
    """
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, _architecture(config))
    _write_config(writer, config)
    _write_tokenizer(writer, folder)
    for key, value in metadata.items():
        name = f"{_architecture(config)}.{key.replace('__', '.')}"
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(name, value)
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = _as_llama_cpp_keeps_it(name, tensor, config)
        chosen = "F32" if tensor.ndim == 1 else (kinds or {}).get(name.split(".")[-2], kind)
        writer.add_tensor(_name(name), _packed(values, chosen, name), raw_dtype=gguf.GGMLQuantizationType[chosen])
    if config["rope_parameters"]["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(folder))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _packed(values: NDArray[np.float32], kind: str, name: str) -> NDArray[Any]:
    stored = gguf.GGMLQuantizationType[kind]
    try:
        found: NDArray[Any] = gguf.quants.quantize(values, stored)
    except NotImplementedError:
        return random_blocks(kind, *values.shape, seed=zlib.crc32(name.encode()))
    return found


def _llama3_divisors(folder: Path) -> NDArray[np.float32]:
    """What llama.cpp's converter works out of a llama3 rule: by how much each frequency is slowed."""
    config = AutoConfig.from_pretrained(folder)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    divisors: NDArray[np.float32] = (config.rope_parameters["rope_theta"] ** -exponents / scaled).numpy()
    return divisors


def _architecture(config: dict[str, Any]) -> str:
    return "llama" if config["model_type"] == "mistral" else str(config["model_type"])


def _write_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_eos_token_id(2)
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_rope_dimension_count(config["head_dim"])


def _write_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    if not (folder / "tokenizer.json").exists():
        return
    backend = json.loads((folder / "tokenizer.json").read_text())
    special = {token["content"] for token in backend["added_tokens"]}
    vocab = backend["model"]["vocab"] | {token["content"]: token["id"] for token in backend["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in special else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in backend["model"]["merges"]])


def _name(name: str) -> str:
    path, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", path)
    return f"blk.{layer[1]}.{NAMES[layer[2]]}.{kind}" if layer else f"{NAMES[path]}.{kind}"


def _as_llama_cpp_keeps_it(name: str, tensor: NDArray[Any], config: dict[str, Any]) -> NDArray[np.float32]:
    """q and k of llama files: each head's first and second halves become neighbours."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    values: NDArray[np.float32] = tensor.astype(np.float32)
    if heads is None or _architecture(config) != "llama":
        return values
    halves = values.reshape(config[heads], 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
