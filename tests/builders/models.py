"""Tiny real models, made on the spot: a Hugging Face folder that transformers wrote, with a tokenizer that works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

BEGIN, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
LINES = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "A pomegranate holds many seeds; each aril is a world of its own.",
    "user asks: what is the capital of France? assistant answers: Paris.",
    'SELECT name, count(*) FROM seeds WHERE fruit = "pomegranate" GROUP BY name;',
    '{"name": "aril", "kind": "seed", "colour": "red", "number": 613}',
    "Pack my box with five dozen liquor jugs. How vexingly quick daft zebras jump!",
    "D\u00e9j\u00e0 vu: na\u00efve caf\u00e9, gro\u00dfe Stra\u00dfe, \u041f\u0440\u0438\u0432\u0435\u0442, "
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c, \u4f60\u597d, \U0001f642\U0001f30d.",
]
TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,  # wide enough that greedy text wanders instead of repeating one token
    "tie_word_embeddings": False,
}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
}


def make_model(
    folder: Path, family: str = "llama", *, seed: int = 0, shard_size: str = "5GB", **overrides: Any
) -> Path:
    """Write a random tiny model of `family` (llama, mistral, qwen2, qwen3) into `folder` and return it.

    `overrides` are fields of the transformers config (tie_word_embeddings, sliding_window, rope_parameters, ...).
    The same arguments give the same weights. Biases and norms are random too, so that dropping one shows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(vocab_size=TINY["vocab_size"]).save_pretrained(folder)
    special = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(family, **{**TINY, **OF_FAMILY[family], **special, **overrides})
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
            elif parameter.dim() == 1:
                parameter.normal_(1.0, 0.1)
    model.save_pretrained(folder, max_shard_size=shard_size)
    generation = {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def make_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on a few lines; it covers every byte, and its ids fill `vocab_size`."""
    raw = Tokenizer(BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BEGIN, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(LINES, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=BEGIN, eos_token=END, pad_token=BEGIN)
    tokenizer.add_special_tokens({"additional_special_tokens": [START]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
