"""A matrix rounded to the nearest codes, in the tensors that each checkpoint format keeps of it.

These are no good quantisers: they make files of the right form and size, of which speed, memory and loading are
measured, and whose perplexity in one reader can be held against that in another. The layouts are those of GPTQModel,
AutoAWQ, compressed-tensors and DeepSeek's FP8 files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core.errors import InvalidRequest
from ..kernels.ops.fields import pack_fields

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # which of eight columns stands in each nibble of a word
LARGEST_E4M3 = 448.0
FP8_BLOCK = 128
HEADS = ("lm_head",)


@dataclass(frozen=True, slots=True)
class Encoding:
    """One format: the `quantization_config` of its checkpoints, and the tensors of a linear's weight."""

    config: Mapping[str, Any] | None  # None: nothing is quantised
    tensors: Callable[[Tensor], dict[str, Tensor]]  # weight [N, K] float32 -> tensor by suffix
    group: int = 0  # what must divide the inputs; 0: anything does

    def check(self, path: str, weight_shape: tuple[int, ...]) -> None:
        """Raises InvalidRequest for a weight [N, K] that the group size does not divide."""
        if self.group and weight_shape[1] % self.group:
            raise InvalidRequest(
                f"{path} has {weight_shape[1]} inputs, which groups of {self.group} do not divide", param="group_size"
            )


def encoding(name: str, group: int) -> Encoding:
    """The format called `name`; `group`: inputs under one scale where the format has groups. Raises InvalidRequest."""
    if name not in ENCODINGS:
        raise InvalidRequest(f"no format {name!r}; there are {', '.join(ENCODINGS)}", param="format")
    return ENCODINGS[name](group)


def _plain(group: int) -> Encoding:
    return Encoding(None, lambda weight: {"weight": weight.to(torch.bfloat16)})


def _gptq(group: int) -> Encoding:
    """4 bits, symmetric, zero points stored minus one (v1)."""

    def tensors(weight: Tensor) -> dict[str, Tensor]:
        codes, scales = symmetric(weight, 4, group, torch.float16)
        num_groups, n = scales.shape[1], len(codes)
        return {
            "qweight": pack_fields(codes, 4).t().contiguous(),  # [K / 8, N]
            "qzeros": torch.full((num_groups, n // 8), 0x77777777, dtype=torch.int32),
            "scales": scales.t().contiguous(),  # [G, N]
            "g_idx": (torch.arange(codes.shape[1]) // group).to(torch.int32),
        }

    config = {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": True, "desc_act": False}
    return Encoding({**config, "checkpoint_format": "gptq", "lm_head": False}, tensors, group)


def _awq(group: int) -> Encoding:
    """4 bits with zero points, in the GEMM layout."""

    def tensors(weight: Tensor) -> dict[str, Tensor]:
        codes, scales, zeros = asymmetric(weight, 4, group, torch.float16)
        return {
            "qweight": _columns(codes.t()),  # [K, N / 8]
            "qzeros": _columns(zeros.t()),  # [G, N / 8]
            "scales": scales.t().contiguous(),  # [G, N]
        }

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Encoding({**config, "modules_to_not_convert": None}, tensors, group)


def _columns(codes: Tensor) -> Tensor:
    """[R, C] uint8 -> [R, C / 8] int32 in AWQ's order of nibbles."""
    eights = codes.reshape(len(codes), -1, 8)[:, :, AWQ_ORDER]
    return pack_fields(eights.reshape(codes.shape), 4)


def _w4a16(group: int) -> Encoding:
    def tensors(weight: Tensor) -> dict[str, Tensor]:
        return _pack_quantized(weight, 4, group)

    return Encoding(_compressed("pack-quantized", 4, group), tensors, group)


def _w8a16(group: int) -> Encoding:
    """One scale for each output: W8A16 as llm-compressor writes it."""

    def tensors(weight: Tensor) -> dict[str, Tensor]:
        return _pack_quantized(weight, 8, weight.shape[1])

    return Encoding(_compressed("pack-quantized", 8, None), tensors)


def _pack_quantized(weight: Tensor, bits: int, group: int) -> dict[str, Tensor]:
    codes, scales = symmetric(weight, bits, group, torch.bfloat16)
    packed, shape = pack_fields(codes, bits), torch.tensor(weight.shape)
    return {"weight_packed": packed, "weight_scale": scales, "weight_shape": shape}


def _w8a8(group: int) -> Encoding:
    """Weights with one scale for each output, activations with one for each token, worked out as they come."""

    def tensors(weight: Tensor) -> dict[str, Tensor]:
        codes, scales = symmetric(weight, 8, weight.shape[1], torch.bfloat16)
        return {"weight": (codes.to(torch.int16) - 128).to(torch.int8), "weight_scale": scales}

    activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    return Encoding(_compressed("int-quantized", 8, None, activations), tensors)


def _compressed(
    layout: str, bits: int, group: int | None, activations: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    rule = {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "dynamic": False, **rule}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": list(HEADS),
    }


def _fp8(group: int) -> Encoding:
    """One scale for each matrix; activations are rounded with one for each step's batch."""

    def tensors(weight: Tensor) -> dict[str, Tensor]:
        scale = weight.abs().max() / LARGEST_E4M3
        return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale}

    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": list(HEADS)}
    return Encoding(config, tensors)


def _fp8_blocks(group: int) -> Encoding:
    """128 x 128 blocks, as DeepSeek keeps them."""

    def tensors(weight: Tensor) -> dict[str, Tensor]:
        (n, k), size = weight.shape, FP8_BLOCK
        padded = pad(weight, (0, -k % size, 0, -n % size))
        blocks = padded.view(len(padded) // size, size, -1, size)
        scales = blocks.abs().amax((1, 3)).clamp(min=1e-8) / LARGEST_E4M3  # [N / 128, K / 128]
        spread = scales.repeat_interleave(size, 0)[:n].repeat_interleave(size, 1)[:, :k]
        return {"weight": (weight / spread).to(torch.float8_e4m3fn), "weight_scale_inv": scales}

    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [FP8_BLOCK, FP8_BLOCK]}
    return Encoding({**config, "modules_to_not_convert": list(HEADS)}, tensors)


def symmetric(weight: Tensor, bits: int, group: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes [N, K] uint8 of weight [N, K] float32 around 2 ** (bits - 1), and scales [N, G] in `dtype`."""
    middle = 1 << (bits - 1)
    grouped = weight.reshape(len(weight), -1, group)  # [N, G, group]
    scales = (grouped.abs().amax(2) / (middle - 1)).clamp(min=1e-7).to(dtype)
    codes = (grouped / scales.float().unsqueeze(2)).round_().clamp_(-middle, middle - 1).add_(middle)
    return codes.flatten(1).to(torch.uint8), scales


def asymmetric(weight: Tensor, bits: int, group: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [N, K] uint8, scales [N, G] in `dtype`, zero points [N, G] uint8: weight = (code - zero) * scale."""
    most = (1 << bits) - 1
    grouped = weight.reshape(len(weight), -1, group)
    low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
    scales = ((high - low) / most).clamp(min=1e-7).to(dtype)
    zeros = (-low / scales.float()).round_().clamp_(0, most)
    codes = (grouped / scales.float().unsqueeze(2)).round_().add_(zeros.unsqueeze(2)).clamp_(0, most)
    return codes.flatten(1).to(torch.uint8), scales, zeros.to(torch.uint8)


ENCODINGS: Mapping[str, Callable[[int], Encoding]] = {
    "bf16": _plain,
    "gptq-int4": _gptq,
    "awq-int4": _awq,
    "ct-w4a16": _w4a16,
    "ct-w8a16": _w8a16,
    "ct-w8a8": _w8a8,
    "fp8": _fp8,
    "fp8-block": _fp8_blocks,
}
