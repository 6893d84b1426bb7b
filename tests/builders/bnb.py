"""Matrices as bitsandbytes packs them, and what those mean, worked out from the codes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
NF4 = [-0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.723]
FP4 = [0.0, 0.0052, 0.6667, 1.0, 0.3333, 0.5, 0.1667, 0.25]
MAPS = {  # of bitsandbytes 0.50, to four digits: a reader takes them from the file
    "nf4": torch.tensor([-1.0, *NF4, 1.0]),
    "fp4": torch.tensor([*FP4, *(-each for each in FP4)]),
}
NESTED_BLOCK = 256


def four_bit(
    weight: Tensor,
    kind: str = "nf4",
    *,
    blocksize: int = 64,
    nested: bool = False,
    storage: torch.dtype = torch.uint8,
    claims: Mapping[str, object] | None = None,
) -> tuple[Tensors, Tensor]:
    """The tensors of a Linear4bit, by their names behind the module's path, and its dequantised weight.

    `claims` override what the quant_state says.
    """
    table = MAPS[kind]
    flat = torch.nn.functional.pad(weight.float().flatten(), (0, -weight.numel() % blocksize)).view(-1, blocksize)
    absmax = flat.abs().amax(1)
    scales, extra, facts = _nested(absmax) if nested else ({"weight.absmax": absmax}, absmax, {})
    codes = ((flat / absmax.clamp(min=1e-9)[:, None])[:, :, None] - table).abs().argmin(-1)  # [blocks, blocksize]
    dense = (table[codes] * extra[:, None]).flatten()[: weight.numel()].view(weight.shape)
    high, low = codes.flatten()[: weight.numel()].view(-1, 2).unbind(1)
    packed = (high * 16 + low).to(torch.uint8)
    said = {"quant_type": kind, "blocksize": blocksize, "dtype": "bfloat16", "shape": list(weight.shape), **facts}
    text = json.dumps({**said, **(claims or {})}).encode()
    tensors = {
        "weight": packed.view(storage)[:, None],
        "weight.quant_map": table.clone(),
        f"weight.quant_state.bitsandbytes__{kind}": torch.tensor(list(text), dtype=torch.uint8),
        **scales,
    }
    return tensors, dense


def eight_bit(weight: Tensor, layout: int | None = 0) -> tuple[Tensors, Tensor]:
    """The tensors of a Linear8bitLt and its dequantised weight; `layout` None = an old file, which does not say."""
    scale = weight.float().abs().amax(1)
    codes = torch.round(weight.float() * (127 / scale[:, None])).to(torch.int8)
    says = {} if layout is None else {"weight_format": torch.tensor(layout, dtype=torch.uint8)}
    return {"weight": codes, "SCB": scale, **says}, codes.float() * scale[:, None] / 127


def _nested(absmax: Tensor) -> tuple[Tensors, Tensor, dict[str, object]]:
    """absmax itself in 8 bits: less its mean, in blocks of 256, by a map."""
    table, offset = torch.linspace(-1, 1, 256) ** 3, float(absmax.mean())
    padded = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % NESTED_BLOCK)).view(-1, NESTED_BLOCK)
    outer = padded.abs().amax(1)
    codes = ((padded / outer.clamp(min=1e-9)[:, None])[:, :, None] - table).abs().argmin(-1)
    found = (table[codes] * outer[:, None]).flatten()[: len(absmax)] + offset
    tensors = {
        "weight.absmax": codes.flatten()[: len(absmax)].to(torch.uint8),
        "weight.nested_absmax": outer,
        "weight.nested_quant_map": table,
    }
    facts = {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": offset}
    return tensors, found, facts
