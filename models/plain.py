"""The tensors of any checkpoint as plain 16-bit numbers, for tools that read nothing but those."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..quant.base import LinearShape, QuantFormat
from ..quant.detect import detect
from .checkpoint import Checkpoint
from .opened import Opened

DTYPE = torch.bfloat16  # what bases are trained in; float16 overflows where they do not


def plain_tensors(opened: Opened) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor in bfloat16) of every tensor, one in memory at a time; packed matrices are dequantised exactly
    and rounded once.
    """
    checkpoint = opened.checkpoint()
    quant = detect(opened.quantization).from_checkpoint(opened.quantization or {}, checkpoint.stored)
    for name, stored in checkpoint.stored.items():
        if isinstance(stored.dtype, str):
            yield name, _dequantised(name, checkpoint, quant).to(DTYPE)
        else:
            yield name, torch.empty(stored.shape, dtype=DTYPE).copy_(checkpoint.read(name))


def plain_config(opened: Opened) -> dict[str, Any]:
    """A config.json for those tensors."""
    fields: dict[str, Any] = opened.config.to_dict()
    fields.pop("quantization_config", None)
    return fields | {
        "model_type": opened.config.model_type,
        "architectures": [opened.architecture],
        "dtype": str(DTYPE).removeprefix("torch."),
    }


def _dequantised(name: str, checkpoint: Checkpoint, quant: QuantFormat) -> Tensor:
    path, _, suffix = name.rpartition(".")
    rows, columns = checkpoint.stored[name].shape
    shape = LinearShape(columns, rows, DTYPE)
    return quant.linear(path, shape).read({suffix: checkpoint.read(name)}, shape).dense()
