"""A checkpoint's quantization_config -> the format that reads it, or the reason why none does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import Unsupported
from ..core.registry import Registry
from .base import QuantFormat
from .on_load import ROUNDINGS

PLAIN = "none"

formats: Registry[type[QuantFormat]] = Registry("quantisation format", package=f"{__package__}.formats")


def detect(config: Mapping[str, Any] | None, asked: str | None = None) -> type[QuantFormat]:
    """The format of a checkpoint whose quantization_config is `config`; None = plain weights.

    `asked` is what --quantization says the file is; None = whatever it says itself. Raises Unsupported, naming the
    method, when there is no such format, or when the file is of another.
    """
    if asked is not None and module_name(asked) not in formats.names():
        raise Unsupported(
            f"--quantization {asked}: there is no such method; {', '.join(ROUNDINGS)} round a 16-bit model, and a "
            f"quantised one may be said to be {', '.join(known())}",
            param="quantization",
        )
    if config is None:
        if asked is not None:
            raise Unsupported(
                f"--quantization {asked}: the checkpoint names no quantisation; leave the flag out, or round it: "
                f"{', '.join(ROUNDINGS)}",
                param="quantization",
            )
        return formats[PLAIN]
    method = str(config.get("quant_method") or "an unnamed method")
    name = module_name(method)
    if asked is not None and module_name(asked) != name:
        raise Unsupported(
            f"--quantization {asked}: the checkpoint is quantised by {method!r}; leave the flag out, or name that",
            param="quantization",
        )
    if name == PLAIN or name not in formats.names():
        raise Unsupported(
            f"the checkpoint's weights are quantised by {method!r}, which Aril does not read; it reads "
            f"{', '.join(known())} and plain weights",
            param="model",
        )
    return formats[name]


def known() -> list[str]:
    """The formats of quantised checkpoints, as their configs spell them."""
    return [name.replace("_", "-") for name in formats.names() if name != PLAIN]


def module_name(method: str) -> str:
    """A quant_method as the name of its file in formats/."""
    return method.rpartition("/")[2].replace("-", "_")  # auto-round once called itself intel/auto-round
