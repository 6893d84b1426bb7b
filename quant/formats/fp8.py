"""`quant_method: fp8`: e4m3 weights under one scale, one per output, or one per block (DeepSeek), and inputs in e4m3.

Written by AutoFP8, by DeepSeek and those who follow it (`weight_scale_inv`, which despite its name multiplies), and by
transformers. Without a calibrated scale each row of inputs has its own, per block's columns where the weight has
blocks. Sources: vllm/model_executor/layers/quantization/fp8.py, transformers/integrations/finegrained_fp8.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...core.errors import Unsupported
from ..activations import ToE4M3
from ..base import LinearMethod, LinearShape, QuantFormat, Stored
from ._blocks import Blocks
from ._float8 import Float8Method, Scales
from ._inputs import Calibrated, Inputs, Ruled
from ._kv_scales import kv_scales_in
from .none import PlainMethod

WEIGHT_SCALES = ("weight_scale_inv", "weight_scale")
INPUT_SCALES = ("input_scale", "activation_scale")  # vLLM's name, transformers' name
IGNORED = ("ignored_layers", "modules_to_not_convert")
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)


class Fp8(QuantFormat):
    """Which matrix is in e4m3 is seen in the header; the config must not contradict it."""

    def __init__(
        self, blocks: Blocks | None, ignored: Sequence[str], stored: Mapping[str, Stored], *, static: bool
    ) -> None:
        self._blocks = blocks
        self._static = static
        self._ignored = ignored
        self._stored = stored

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], stored: Mapping[str, Stored]) -> Fp8:
        scheme = str(config.get("activation_scheme") or "dynamic").lower()
        if scheme not in ("dynamic", "static"):
            raise _refused("activation_scheme", scheme, "dynamic, static")
        if config.get("fmt") not in (None, "e4m3"):
            raise _refused("fmt", config["fmt"], "e4m3")
        if config.get("scale_fmt") not in (None, "float", "ue8m0"):
            raise _refused("scale_fmt", config["scale_fmt"], "float, ue8m0")
        if config.get("expert_dtype") not in (None, "fp8"):
            raise _refused("expert_dtype", config["expert_dtype"], "fp8")
        blocks = _blocks(config.get("weight_block_size"))
        if blocks and scheme == "static":
            raise _refused("activation_scheme", scheme, "dynamic where weights have blocks")
        ignored = [str(name) for field in IGNORED for name in config.get(field) or ()]
        return cls(blocks, ignored, stored, static=scheme == "static")

    def linear(self, name: str, shape: LinearShape) -> LinearMethod:
        weight = self._stored.get(f"{name}.weight")
        scale = next((f"{name}.{suffix}" for suffix in WEIGHT_SCALES if f"{name}.{suffix}" in self._stored), None)
        if weight is None or weight.dtype not in EIGHT_BITS:
            if weight is not None and scale is not None:
                raise Unsupported(f"{name}.weight is {weight.dtype}, not fp8, but {scale} is there", param="model")
            return PlainMethod(name)
        if self._is_ignored(name):
            raise Unsupported(
                f"quantization_config says that {name} is not quantised, but {name}.weight is {weight.dtype}",
                param="model",
            )
        return Float8Method(name, self._scales(name, shape), self._inputs(name), self._stored)

    def kv_scales(self, path: str) -> Mapping[str, str]:
        return kv_scales_in(self._stored, path)

    def _is_ignored(self, name: str) -> bool:
        """By its path or by a part of it, as the lists of both fields mean it."""
        return any(f".{each.strip('.')}." in f".{name}." for each in self._ignored)

    def _scales(self, name: str, shape: LinearShape) -> Scales:
        suffix = next((each for each in WEIGHT_SCALES if f"{name}.{each}" in self._stored), None)
        if self._blocks is not None:
            return Scales(suffix or WEIGHT_SCALES[0], self._blocks)
        found = self._stored.get(f"{name}.{suffix}")
        per_output = found is not None and [n for n in found.shape if n != 1] == [shape.out_features]
        return Scales(suffix or "weight_scale", Blocks(rows=1) if per_output else Blocks())

    def _inputs(self, name: str) -> Inputs:
        if self._static:
            found = (each for each in INPUT_SCALES if f"{name}.{each}" in self._stored)
            return Calibrated("fp8", next(found, INPUT_SCALES[0]))
        if self._blocks is not None:
            return Ruled(f"fp8 inputs in groups of {self._blocks.columns}", ToE4M3(self._blocks.columns))
        return Ruled("fp8 inputs", ToE4M3())


def _blocks(size: Any) -> Blocks | None:
    if size is None:
        return None
    if not isinstance(size, list | tuple) or len(size) != 2 or not all(type(n) is int and n > 0 for n in size):
        raise _refused("weight_block_size", size, "null and [rows, columns]")
    return Blocks(*size)


def _refused(field: str, value: object, there_are: str) -> Unsupported:
    return Unsupported(f"quantization_config.{field} is {value!r}; Aril reads {there_are}", param="model")


EXPORT = Fp8
