"""The native provider: C++ for the CPU (kernels/csrc), compiled once per machine by build.py."""

from __future__ import annotations

from ...core.errors import Unsupported
from ...core.log import event, get_logger
from ...core.platform import Platform
from .build import library

log = get_logger(__name__)


def refuses(platform: Platform) -> str | None:
    """Why no native kernel can run on this machine; may compile them first."""
    if platform.kind != "cpu":
        return f"is for the CPU, and this machine computes on {platform.kind}"
    try:
        library()
    except Unsupported as error:
        log.warning(event("native_kernels_missing", reason=error.message, effect="CPU kernels fall back to torch"))
        return error.message
    return None
