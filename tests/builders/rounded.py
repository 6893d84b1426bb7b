"""What tools do to inputs, keys and values on the way: rounded and read back, by the formulas of compressed-tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

Rounding = Callable[[Tensor], Tensor]


def rounded_inputs(model: Any, roundings: Mapping[str, Rounding | None]) -> Any:
    """A transformers model whose modules' inputs are rounded first; adapters see them as they are."""
    for name, rounding in roundings.items():
        if rounding is not None:
            model.get_submodule(name).register_forward_pre_hook(
                lambda _, inputs, rounding=rounding: (rounding(inputs[0].flatten(0, -2)).view(inputs[0].shape),)
            )
    return model


def to_int8(x: Tensor, scale: Tensor, zero: Tensor | float = 0.0) -> Tensor:
    return ((x / scale + zero).round().clamp(-128, 127) - zero) * scale


def int8_tokens(x: Tensor) -> Tensor:
    return to_int8(x, x.abs().amax(1, keepdim=True) / 127.5)


def asymmetric_int8_tokens(x: Tensor) -> Tensor:
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    scale = (high - low) / 255
    return to_int8(x, scale, (-128 - low / scale).round().clamp(-128, 127))


def to_fp8(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def fp8_tokens(x: Tensor) -> Tensor:
    return to_fp8(x, x.abs().amax(1, keepdim=True) / 448)


def fp8_groups(size: int) -> Rounding:
    return lambda x: torch.cat([fp8_tokens(part) for part in x.split(size, 1)], 1)


def rounding_cache(scales: Mapping[str, Tensor]) -> str:
    """The name of an attention, for a transformers config, that rounds keys (rotated by then) and values to e4m3.

    `scales` are by their names in a checkpoint: model.layers.0.self_attn.k_scale.
    """

    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **more: Any) -> Any:
        path = f"model.layers.{module.layer_idx}.self_attn"
        k, v = to_fp8(k, scales[f"{path}.k_scale"].float()), to_fp8(v, scales[f"{path}.v_scale"].float())
        return eager_attention_forward(module, q, k, v, *rest, **more)

    ALL_ATTENTION_FUNCTIONS.register("rounding", attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register("rounding", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    return "rounding"
