"""Rounding of plain weights to the nearest code, and how compressed-tensors stores the result: int8, int4 and fp8.

Weights only: rows meet them as they are. How much is lost on SmolLM2's first two layers, and what else was tried (root
mean square error of the weights, KL of the answers to bfloat16's):

int4, groups of 32      8.3%  0.031 with zero points; 10.0%  0.045 symmetric, with half a bit in eight less
int8, a scale a row     0.86%  0.0004
fp8, a scale a row      2.6%  0.0029; 2.7%  0.0032 with one scale for all
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels.ops.fields import pack_fields

SCALES = torch.bfloat16  # as compressed-tensors writes them; codes are chosen for the scale as it is stored
GROUP = 32
MOST_E4M3 = 448.0
VERSION = "0.19.0"  # of compressed-tensors, whose layout this is
Specs = dict[str, tuple[torch.dtype, tuple[int, ...]]]


class Rounding(ABC):
    """One way to round; its tensors grow by rows, so that a matrix can be rounded a few rows at a time."""

    layout: str  # a format of compressed-tensors
    args: dict[str, Any]  # its QuantizationArgs

    def refuses(self, k: int) -> str | None:
        """Why matrices of `k` inputs stay as they are; None = they do not."""
        return None

    @abstractmethod
    def specs(self, n: int, k: int) -> Specs:
        """The tensors of a matrix [n, k], by the name behind the module's path."""

    @abstractmethod
    def round(self, rows: Tensor) -> dict[str, Tensor]:
        """A part of each of those tensors for rows[R, K] float32; R is a multiple of 8, but for the last rows."""

    def facts(self, n: int, k: int) -> dict[str, Tensor]:
        """Those of the tensors that do not grow by rows."""
        return {}

    def config(self, ignore: Sequence[str]) -> dict[str, Any]:
        """The quantization_config of a checkpoint in which all Linears but those are stored so."""
        weights = {"symmetric": True, "dynamic": False, "group_size": None, **self.args}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
        return {
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
            "version": VERSION,
            "format": self.layout,
            "config_groups": {"group_0": {**group, "format": self.layout}},
            "ignore": list(ignore),
            "kv_cache_scheme": None,
        }


class Int4(Rounding):
    """Four bits with a scale and a zero point for every 32 inputs."""

    layout = "pack-quantized"
    args = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": False}  # noqa: RUF012

    def refuses(self, k: int) -> str | None:
        return f"groups of {GROUP} do not divide {k} inputs" if k % GROUP else None

    def specs(self, n: int, k: int) -> Specs:
        return {
            "weight_packed": (torch.int32, (n, k // 8)),
            "weight_scale": (SCALES, (n, k // GROUP)),
            "weight_zero_point": (torch.int32, (-(-n // 8), k // GROUP)),
            "weight_shape": (torch.int64, (2,)),
        }

    def round(self, rows: Tensor) -> dict[str, Tensor]:
        grouped = rows.view(len(rows), -1, GROUP)  # [R, G, 32]
        low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
        stored, scales = _stored((high - low) / 15)
        zeros = torch.round(-low / scales).clamp(0, 15)
        codes = (torch.round(grouped / scales[:, :, None]) + zeros[:, :, None]).clamp(0, 15)
        return {
            "weight_packed": pack_fields(codes.to(torch.uint8).flatten(1), 4),
            "weight_scale": stored,
            "weight_zero_point": pack_fields(zeros.to(torch.uint8).t().contiguous(), 4).t(),
        }

    def facts(self, n: int, k: int) -> dict[str, Tensor]:
        return {"weight_shape": torch.tensor([n, k])}


class Int8(Rounding):
    """Eight bits with a scale for each output."""

    layout = "pack-quantized"
    args = {"num_bits": 8, "type": "int", "strategy": "channel"}  # noqa: RUF012

    def specs(self, n: int, k: int) -> Specs:
        return {
            "weight_packed": (torch.int32, (n, -(-k // 4))),
            "weight_scale": (SCALES, (n, 1)),
            "weight_shape": (torch.int64, (2,)),
        }

    def round(self, rows: Tensor) -> dict[str, Tensor]:
        stored, scales = _stored(rows.abs().amax(1, keepdim=True) / 127)
        codes = torch.round(rows / scales).clamp(-128, 127) + 128
        return {"weight_packed": pack_fields(codes.to(torch.uint8), 8), "weight_scale": stored}

    def facts(self, n: int, k: int) -> dict[str, Tensor]:
        return {"weight_shape": torch.tensor([n, k])}


class Fp8(Rounding):
    """e4m3 with a scale for each output."""

    layout = "naive-quantized"
    args = {"num_bits": 8, "type": "float", "strategy": "channel"}  # noqa: RUF012

    def specs(self, n: int, k: int) -> Specs:
        return {"weight": (torch.float8_e4m3fn, (n, k)), "weight_scale": (SCALES, (n, 1))}

    def round(self, rows: Tensor) -> dict[str, Tensor]:
        stored, scales = _stored(rows.abs().amax(1, keepdim=True) / MOST_E4M3)
        codes = (rows / scales).clamp(-MOST_E4M3, MOST_E4M3)
        return {"weight": codes.to(torch.float8_e4m3fn), "weight_scale": stored}


ROUNDINGS: dict[str, Rounding] = {"int8": Int8(), "int4": Int4(), "fp8": Fp8()}


def _stored(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Scales as they are stored, and as they are then read; where all weights are 0, any will do."""
    stored = torch.where(scales == 0, 1.0, scales).to(SCALES)
    return stored, stored.float()
