"""A checkpoint's quantization_config -> the format that reads it, or the reason why none does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import Unsupported
from ..core.registry import Registry
from .base import QuantFormat

PLAIN = "none"

formats: Registry[type[QuantFormat]] = Registry("quantisation format", package=f"{__package__}.formats")


def detect(config: Mapping[str, Any] | None) -> QuantFormat:
    """The format of a checkpoint whose quantization_config is `config` (None = plain weights).

    Raises Unsupported, naming the method, when there is no such format.
    """
    if config is None:
        return formats[PLAIN].from_checkpoint({})
    method = str(config.get("quant_method") or "an unnamed method")
    name = method.replace("-", "_")
    if name == PLAIN or name not in formats.names():
        raise Unsupported(
            f"the checkpoint's weights are quantised by {method!r}, which Aril does not read; it reads "
            f"{', '.join(_described(known) for known in formats.names())}",
            param="model",
        )
    return formats[name].from_checkpoint(config)


def _described(name: str) -> str:
    return "plain weights" if name == PLAIN else name
