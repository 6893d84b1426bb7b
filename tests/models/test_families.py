"""Every family and variant gives transformers' logits, over paged memory, in ragged batches of chunks and decodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from aril.models.base import Decoder
from aril.models.loader import load_model
from aril.models.source import locate
from builders.models import make_model
from builders.pages import Pages, differences, some_tokens
from transformers import AutoModelForCausalLM

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"long_factor": [1.0 + i / 4 for i in range(8)], "short_factor": [1.0 + i / 32 for i in range(8)]}
WINDOWED = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
ALTERNATING = {**WINDOWED, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": ("llama", {"head_dim": 32}),
    "llama without groups": ("llama", {"num_key_value_heads": 4}),
    "llama 3": ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 5e5, "original_max_position_embeddings": 32}}),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    "yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "yarn with mscale": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 64,
                "mscale": 1.5,
                "mscale_all_dim": 0.5,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "truncate": False,
            }
        },
    ),
    "mistral": ("mistral", {}),
    "mistral with a window": ("mistral", {"sliding_window": 24}),
    "qwen2": ("qwen2", {}),
    "qwen2 with windows on late layers": ("qwen2", WINDOWED),
    "qwen2 with a window on every other layer": ("qwen2", ALTERNATING),
    "qwen3": ("qwen3", {}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3 with windows": ("qwen3", ALTERNATING),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_ragged_batch_gives_the_logits_of_transformers(variant: str, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    folder = make_model(tmp_path, family, **overrides)
    assert differences(load(folder), reference(folder), lengths=(70, 33, 1)) < 1e-4


@pytest.mark.parametrize("max_model_len", [64, 200])
def test_longrope_takes_its_factors_by_the_length_it_is_loaded_for(max_model_len: int, tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, **LONG}
    folder = make_model(tmp_path, rope_parameters=rope)
    decoder = load(folder, max_model_len=max_model_len)
    assert differences(decoder, reference(folder), lengths=(max_model_len,)) < 1e-4


@pytest.mark.parametrize("max_model_len", [128, 256])
def test_dynamic_rope_is_stretched_for_the_length_it_is_loaded_for(max_model_len: int, tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    folder = make_model(tmp_path, max_position_embeddings=128, rope_parameters=rope)
    decoder = load(folder, max_model_len=max_model_len)
    assert differences(decoder, reference(folder), lengths=(max_model_len,)) < 1e-4


def test_the_rows_of_a_batch_do_not_see_each_other(tmp_path: Path) -> None:
    decoder = load(make_model(tmp_path))
    row, other = some_tokens(40, seed=1), some_tokens(50, seed=2)
    alone = Pages(decoder).run({"row": row})["row"]
    together = Pages(decoder).run({"other": other, "row": row})["row"]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def load(folder: Path, **asked: Any) -> Decoder:
    return load_model(locate(str(folder)), dtype=torch.float32, device=torch.device("cpu"), **asked)


def reference(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
