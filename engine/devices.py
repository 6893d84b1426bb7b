"""Devices by name or by size, for the question whether a model fits: named cards, and memory in bytes.

A card holds less than its box says. The figures are what drivers report as total memory (nvidia-smi, rocminfo), each
seen in the public report that is named beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..core.errors import InvalidRequest
from ..core.platform import Platform
from .config import parse_bytes
from .sizing import usable_bytes

MIB = 1024**2
MODAL = "https://github.com/modal-labs/modal-client/pull/2797"
CARDS = {  # name -> MiB, and where a driver was seen to report it
    "T4": (15360, MODAL),
    "L4": (23034, MODAL),
    "L40S": (46068, MODAL),
    "A10": (23028, MODAL),
    "A100 40GB": (40960, MODAL),
    "A100 80GB": (81920, MODAL),
    "H100 80GB": (81559, MODAL),
    "B200": (183359, "https://github.com/NVIDIA/TensorRT-LLM/issues/10278"),
    "V100 16GB": (16160, "https://github.com/4paradigm/k8s-vgpu-scheduler/issues/7"),
    "RTX 3060": (12288, "https://github.com/geerlingguy/raspberry-pi-pcie-devices/issues/790"),
    "RTX 3090": (24576, "https://github.com/noonghunna/club-3090/issues/390"),
    "RTX 4090": (24564, "https://github.com/RLinf/RLinf/issues/255"),
    "RTX 5090": (32607, "https://github.com/noonghunna/club-3090/issues/1261"),
    "MI300X": (196592, "https://github.com/ROCm/legacy-rocm-build/issues/4414"),
}


@dataclass(frozen=True, slots=True)
class Device:
    """Somewhere a model might run."""

    name: str
    memory: int  # bytes
    usable: int  # of those, for weights, adapters, working memory and KV cache together
    source: str | None = None  # of a named card's figure


def device_of(text: str, share: float) -> Device:
    """A card of CARDS, or a GPU with so much memory (`24GB`), of which `share` is used. Raises InvalidRequest."""
    named = {_plain(name): name for name in CARDS}
    if _plain(text) in named:
        name = named[_plain(text)]
        mib, source = CARDS[name]
        return Device(name, mib * MIB, usable_bytes(mib * MIB, share), source)
    try:
        memory = parse_bytes(text)
    except ValueError:
        raise InvalidRequest(
            f"--device-memory {text!r} is neither a size like 24GB nor a card that is known: {', '.join(CARDS)}",
            param="device_memory",
        ) from None
    return Device(text.strip(), memory, usable_bytes(memory, share))


def this_machine(platform: Platform, share: float) -> Device:
    """The device that a model would run on here, with what others leave free on it now."""
    if platform.kind == "cpu":
        return Device(f"this machine's CPU ({platform.arch})", platform.memory, platform.free_memory())
    taken = platform.memory - platform.free_memory()
    usable = int(platform.memory * share) - taken
    return Device(f"this machine's GPU ({platform.arch})", platform.memory, usable)


def _plain(name: str) -> str:
    """`RTX 4090`, `rtx-4090` and `NVIDIA GeForce RTX 4090` are one."""
    words = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia|amd)?(geforce|tesla|instinct)?", "", words)
