"""Qwen2, Qwen2.5 and Qwen3 (dense): Llama blocks with biases on q, k, v (2) or norms on q, k (3); windows by layer."""

from __future__ import annotations

from typing import Any

from ...core.errors import Unsupported
from ..base import Build
from ..layers.norm import RMSNorm
from .llama import Llama

KINDS = ("full_attention", "sliding_attention")


class Qwen(Llama):
    """Which of the two it is, the config's model_type says."""

    architectures = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")

    def check(self, config: Any) -> None:
        super().check(config)
        unknown = sorted(set(config.layer_types) - set(KINDS))
        if unknown:
            raise Unsupported(f"layer_types {', '.join(unknown)}; there are {', '.join(KINDS)}", param="model")

    def window(self, config: Any, layer: int) -> int | None:
        window: int | None = config.sliding_window
        return window if config.layer_types[layer] == "sliding_attention" else None

    def biases(self, config: Any) -> tuple[bool, bool, bool]:
        if config.model_type == "qwen2":
            return True, False, False
        return config.attention_bias, config.attention_bias, False

    def head_norms(self, config: Any, path: str, build: Build) -> tuple[RMSNorm | None, RMSNorm | None]:
        if config.model_type == "qwen2":
            return None, None
        size, eps = self.heads(config).size, config.rms_norm_eps
        return build.norm(f"{path}.q_norm", size, eps), build.norm(f"{path}.k_norm", size, eps)


EXPORT = Qwen()
