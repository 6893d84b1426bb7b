"""Matrices as compressed-tensors and DeepSeek's fp8 store them, made number by number; what they mean is known unread.

The dense matrix beside each is worked out from the numbers themselves, and packing is done bit by bit: neither as Aril
does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from aril.quant.base import LinearShape, QuantFormat, Stored
from aril.quant.matrix import Matrix
from torch import Tensor

MODULE = "model.layers.0.mlp.down_proj"  # whom a matrix alone is taken for
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Made:
    """What a checkpoint holds of a matrix, by the names behind its module path, and what it means: [N, K] float32."""

    tensors: Tensors
    dense: Tensor


@dataclass(frozen=True)
class Integers:
    """Values [N, K] and zeros [N, G] between -2^(bits-1) and 2^(bits-1) - 1, scales [N, G], the group of each input."""

    bits: int
    values: Tensor
    zeros: Tensor
    scales: Tensor
    index: Tensor

    def dense(self) -> Tensor:
        return (self.values - self.zeros[:, self.index]).float() * self.scales.float()[:, self.index]


def integers(
    weight: Tensor,
    bits: int,
    group: int | None = None,
    *,
    symmetric: bool = True,
    dtype: torch.dtype = torch.bfloat16,
    index: Tensor | None = None,
) -> Integers:
    """The nearest integers to a weight [N, K], in groups of `group` inputs (None = one), or as `index` [K] says."""
    inputs, top = weight.shape[1], (1 << bits) - 1
    index = torch.arange(inputs) // (group or inputs) if index is None else index
    parts = [weight[:, index == at] for at in range(int(index.max()) + 1)]
    low = torch.stack([part.amin(1).clamp(max=0) for part in parts], 1)
    high = torch.stack([part.amax(1).clamp(min=0) for part in parts], 1)
    scales = ((2 * torch.maximum(-low, high) if symmetric else high - low) / top).to(dtype)
    lowest = -(1 << (bits - 1))
    zeros = torch.zeros_like(scales) if symmetric else lowest - (low / scales.float()).round()
    zeros = zeros.clamp(lowest, lowest + top).long()
    values = (weight / scales.float()[:, index]).round() + zeros[:, index]
    return Integers(bits, values.clamp(lowest, lowest + top).long(), zeros, scales, index)


def fields(values: Tensor, bits: int, *, padded: bool = False) -> Tensor:
    """Rows of integers [R, C] plus 2^(bits-1) as the bits of int32 words; `padded`: 32 // bits whole ones to a word."""
    shifted = values.numpy() + (1 << (bits - 1))
    each = ((shifted[:, :, None] >> np.arange(bits)) & 1).astype(np.uint8)
    if padded:
        per_word = 32 // bits
        each = np.pad(each, ((0, 0), (0, -values.shape[1] % per_word), (0, 0)))
        each = np.pad(each.reshape(len(values), -1, per_word * bits), ((0, 0), (0, 0), (0, 32 - per_word * bits)))
    stream = each.reshape(len(values), -1)
    stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32)))
    return torch.from_numpy(np.packbits(stream, axis=1, bitorder="little").view("<i4").copy())


def packed(made: Integers, *, symmetric: bool = True, padded: bool = False) -> Made:
    """pack-quantized."""
    tensors = {
        "weight_packed": fields(made.values, made.bits, padded=padded),
        "weight_scale": made.scales,
        "weight_shape": torch.tensor(made.values.shape),
    }
    if not symmetric:
        zeros = fields(made.zeros.t().contiguous(), made.bits, padded=padded)  # [G, words of N]
        tensors["weight_zero_point"] = zeros.t().contiguous()
    return Made(tensors, made.dense())


def unpacked(made: Integers, *, symmetric: bool = True) -> Made:
    """int-quantized and naive-quantized."""
    tensors = {"weight": made.values.to(torch.int8), "weight_scale": made.scales}
    return Made(tensors if symmetric else {**tensors, "weight_zero_point": made.zeros.to(torch.int8)}, made.dense())


def float8(
    weight: Tensor, rows: int, columns: int, *, dtype: torch.dtype = torch.float32, name: str = "weight_scale"
) -> Made:
    """e4m3 with a scale for each `rows` x `columns` block, stored as [blocks, blocks] of `dtype`."""
    n, k = weight.shape
    counts = -(-n // rows), -(-k // columns)
    scales, dense, codes = torch.empty(counts, dtype=dtype), torch.empty(n, k), torch.empty(n, k)
    for i in range(counts[0]):
        for j in range(counts[1]):
            block = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            scales[i, j] = (weight[block].abs().max() / 448).to(dtype)
            codes[block] = (weight[block] / scales[i, j].float()).clamp(-448, 448)
            dense[block] = codes[block].to(torch.float8_e4m3fn).float() * scales[i, j].float()
    return Made({"weight": codes.to(torch.float8_e4m3fn), name: scales}, dense)


def nvfp4(weight: Tensor) -> Made:
    """e2m1 under e4m3 under one float32, which divides."""
    over = (448 * 6 / weight.abs().max()).reshape(1)
    groups = weight.unflatten(1, (-1, 16))
    scales = (groups.abs().amax(2) / 6 * over).clamp(max=448).to(torch.float8_e4m3fn)
    each = (scales.float() / over)[..., None]
    codes = _e2m1_codes(groups / each)
    tensors = {"weight_packed": _nibbles(codes.flatten(1)), "weight_scale": scales, "weight_global_scale": over}
    return Made(tensors, (_e2m1(codes) * each).flatten(1))


def mxfp4(weight: Tensor) -> Made:
    """e2m1 under a power of 2."""
    groups = weight.unflatten(1, (-1, 32))
    exponents = groups.abs().amax(2).log2().floor() - 2
    codes = _e2m1_codes(groups / torch.exp2(exponents)[..., None])
    tensors = {"weight_packed": _nibbles(codes.flatten(1)), "weight_scale": (exponents + 127).to(torch.uint8)}
    return Made(tensors, (_e2m1(codes) * torch.exp2(exponents)[..., None]).flatten(1))


def mxfp8(weight: Tensor) -> Made:
    """e4m3 under a power of 2."""
    groups = weight.unflatten(1, (-1, 32))
    exponents = groups.abs().amax(2).log2().floor() - 8
    codes = (groups / torch.exp2(exponents)[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    tensors = {"weight": codes.flatten(1), "weight_scale": (exponents + 127).to(torch.uint8)}
    return Made(tensors, (codes.float() * torch.exp2(exponents)[..., None]).flatten(1))


def _e2m1_codes(numbers: Tensor) -> Tensor:
    """The nearest of the 16 numbers, as 4 bits: sign, exponent, fraction."""
    nearest = (numbers.abs()[..., None] - E2M1).abs().argmin(-1)
    return nearest + 8 * (numbers < 0)


def _e2m1(codes: Tensor) -> Tensor:
    return torch.cat([E2M1, -E2M1])[codes]


def _nibbles(codes: Tensor) -> Tensor:
    """The even input in the low half."""
    return (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)


# Configs.


def args(bits: int = 8, kind: str = "int", strategy: str = "channel", **more: Any) -> dict[str, Any]:
    """QuantizationArgs, with every key that version 0.19 writes."""
    plain = {"actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "symmetric": True}
    return {**plain, "num_bits": bits, "type": kind, "strategy": strategy, "observer": None, **more}


def group(weights: Mapping[str, Any] | None, inputs: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A config group of all Linears."""
    return {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None, **more}


def config(form: str, *groups: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A quantization_config of format `form`."""
    named = {f"group_{at}": each for at, each in enumerate(groups)}
    said = {"quant_method": "compressed-tensors", "quantization_status": "compressed", "version": "0.19.0"}
    return {**said, "format": form, "config_groups": named, "ignore": ["lm_head"], "kv_cache_scheme": None, **more}


def read(format_: type[QuantFormat], said: Mapping[str, Any], made: Made) -> Matrix:
    """What a format makes of the tensors of one matrix; it must ask for all of them as they are."""
    n, k = made.dense.shape
    stored = {f"{MODULE}.{name}": Stored(tuple(each.shape), each.dtype) for name, each in made.tensors.items()}
    shape = LinearShape(k, n, torch.float32)
    method = format_.from_checkpoint(said, stored).linear(MODULE, shape)
    specs = method.tensors(shape)
    assert specs.keys() == made.tensors.keys()
    for name, spec in specs.items():
        assert tuple(made.tensors[name].shape) == spec.shape or made.tensors[name].numel() == 1, name
        assert made.tensors[name].dtype in spec.dtypes, name
    return method.read(made.tensors, shape)
